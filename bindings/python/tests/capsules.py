"""DLPack capsules, read and consumed as a framework does it, by the structs of dlpack.h 1.0."""

from __future__ import annotations

import ctypes
from typing import Any, Callable

API = ctypes.pythonapi
API.PyCapsule_GetPointer.restype = ctypes.c_void_p
API.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
API.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Tensor(ctypes.Structure):
    """DLTensor, with DLDevice and DLDataType in it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Capsule(ctypes.Structure):
    """What both managed structs have."""

    name: bytes
    used: bytes

    @classmethod
    def of(cls, capsule: object) -> Any:
        return cls.from_address(API.PyCapsule_GetPointer(capsule, cls.name))

    @classmethod
    def read(cls, capsule: object) -> dict[str, Any]:
        managed = cls.of(capsule)
        tensor = managed.tensor
        return {
            "name": cls.name.decode(),
            "version": [managed.major, managed.minor] if cls is Versioned else None,
            "flags": managed.flags if cls is Versioned else None,
            "device": [tensor.device_type, tensor.device_id],
            "dtype": [tensor.code, tensor.bits, tensor.lanes],
            "shape": tensor.shape[: tensor.ndim],
            "strides": tensor.strides[: tensor.ndim],
            "byte_offset": tensor.byte_offset,
        }

    @classmethod
    def data(cls, capsule: object) -> int:
        address: int = cls.of(capsule).tensor.data
        return address

    @classmethod
    def consume(cls, capsule: object) -> Callable[[], None]:
        """Takes the tensor over; what comes back frees it."""
        managed = cls.of(capsule)
        # The name has to outlive the capsule, which keeps the pointer alone.
        API.PyCapsule_SetName(capsule, cls.used)
        return lambda: managed.deleter(ctypes.addressof(managed))


class Plain(Capsule):
    """DLManagedTensor."""

    name = b"dltensor"
    used = b"used_dltensor"
    _fields_ = (
        ("tensor", Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    )


class Versioned(Capsule):
    """DLManagedTensorVersioned."""

    name = b"dltensor_versioned"
    used = b"used_dltensor_versioned"
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )

"""A worker with page-locked slots, on a driver that is found as `libcuda.so.1`. What was seen is the action:

`echo`   the payload, by way of the device
`ahead`  the payload, out of the array on the device that the sidecar copied it to; told to a stream
`array`  the same, waited for by `__cuda_array_interface__`
`dlpack` the same, by the stream that DLPack names
`held`   as `ahead`, of the observation before this one, whose array was kept
`back`   the payload, by way of the device both ways: the action lies there
`late`   what the device has of the observation *before* this one, whose slot was given back at once
`named`  the same, and the array names the stream that it is ready on
`busy`   the payload, by way of the device; behind it, in how many hundredths of a second
         another thread was told of it during the call
`hasty`  as `late`, answered from another thread during the call; `none` where that came too early
`capsule` what is in the DLPack capsules of the array that the sidecar copied it to
`fallback` the payload, by way of the device, though the sidecar copies ahead; of one byte: why
`state`  what the worker says of itself
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import signal
import sys
import threading
import time

from capsules import Plain, Versioned

from sidecar import DeviceArray, Observation, StateError, Worker

SIZE = 1 << 16


class Device:
    """An array of bytes and a stream on device 0."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(SIZE))
        self.pointer = pointer.value
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        #: As PyTorch's streams have it.
        self.cuda_stream = stream.value or 0

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self.cuda, name)(*arguments)
        assert code == 0, f"{name}: {code}"

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {"data": (self.pointer, False), "shape": (SIZE,), "typestr": "|u1", "version": 3}

    def read(self, size: int, pointer: int | None = None) -> bytes:
        into = ctypes.create_string_buffer(size)
        stream = ctypes.c_void_p(self.cuda_stream)
        pointer = ctypes.c_uint64(self.pointer if pointer is None else pointer)
        self.call("cuMemcpyDtoHAsync_v2", into, pointer, ctypes.c_size_t(size), stream)
        self.call("cuStreamSynchronize", stream)
        return into.raw

    def close(self) -> None:
        self.call("cuStreamDestroy_v2", ctypes.c_void_p(self.cuda_stream))
        self.call("cuMemFree_v2", ctypes.c_uint64(self.pointer))
        self.call("cuDevicePrimaryCtxRelease_v2", 0)


class Tensor:
    """What a framework has."""

    def __init__(self, interface: dict[str, object]) -> None:
        self.__cuda_array_interface__ = interface


def main() -> None:
    # In order, so that the driver's report is written.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    with Worker(pin=True) as worker:
        device = Device() if worker.pinned[0] or "--device" in sys.argv else None
        before = 0

        def echo(observation: Observation) -> bytes:
            assert device is not None
            observation.copy_to(device, device)
            assert observation.device_pointer or not worker.pinned[0]
            return device.read(observation.nbytes)

        def on_device(observation: Observation) -> DeviceArray:
            assert worker.device_errors == (None,), worker.device_errors
            array = observation.device
            assert array is not None and array.nbytes == observation.nbytes
            assert array.__dlpack_device__() == (2, 0)
            return array

        def ahead(observation: Observation) -> bytes:
            assert device is not None
            array = on_device(observation)
            array.wait(device)
            interface = array.__cuda_array_interface__
            assert interface["stream"] == device.cuda_stream and interface["typestr"] == "|u1"
            assert interface["shape"] == (array.nbytes,) and interface["data"] == (array.pointer, False)
            return device.read(array.nbytes, array.pointer)

        def array(observation: Observation) -> bytes:
            assert device is not None
            interface = on_device(observation).__cuda_array_interface__
            assert interface["stream"] is None
            return device.read(observation.nbytes, interface["data"][0])

        def dlpack(observation: Observation) -> bytes:
            assert device is not None
            array = on_device(observation)
            before = observation.views
            capsule = array.__dlpack__(stream=device.cuda_stream, max_version=(1, 0))
            assert observation.views == before + 1
            seen = device.read(array.nbytes, array.pointer)
            del capsule
            assert observation.views == before
            for stream in (None, 1, 2, -1):
                array.__dlpack__(stream=stream)
            return seen

        def busy(observation: Observation) -> bytes:
            assert device is not None
            copier = threading.Thread(target=observation.copy_to, args=(device, device))
            copier.start()
            moments = set()
            while copier.is_alive():
                assert observation.views == 0 and not observation.answered and not observation.cancelled
                assert observation.device_pointer
                moments.add(int(time.monotonic() * 100))
            return device.read(observation.nbytes) + len(moments).to_bytes(4, "little")

        def hasty(observation: Observation) -> None:
            nonlocal before
            assert device is not None
            last = device.read(before) if before else b"none"
            before = observation.nbytes
            begun = threading.Event()

            class Target:
                @property
                def __cuda_array_interface__(self) -> dict[str, object]:
                    begun.set()
                    return device.__cuda_array_interface__

            def copy() -> None:
                nonlocal before
                try:
                    observation.copy_to(Target(), device)
                except StateError:
                    before = 0

            copier = threading.Thread(target=copy)
            copier.start()
            begun.wait()
            observation.answer(last)
            copier.join()

        def capsule(observation: Observation) -> bytes:
            array = on_device(observation)
            views = observation.views
            said = []
            for kind, version in (
                (Plain, None),
                (Plain, (0, 8)),
                (Versioned, (1, 0)),
                (Versioned, (2, 3)),
            ):
                made = array.__dlpack__(max_version=version)
                assert observation.views == views + 1
                said.append(kind.read(made) | {"at": kind.data(made) - array.pointer})
                # A consumer takes it over, and frees it when it likes.
                free = kind.consume(made)
                del made
                assert observation.views == views + 1, "its destructor leaves it to the consumer"
                free()
                assert observation.views == views
                # Nobody takes it over.
                made = array.__dlpack__(max_version=version)
                del made
                assert observation.views == views
                # Freed while the capsule is there still.
                made = array.__dlpack__(max_version=version)
                kind.consume(made)()
                assert observation.views == views
                del made
                assert observation.views == views, "freed twice"
            return json.dumps(said).encode()

        kept: list[DeviceArray] = []

        def held(observation: Observation) -> bytes:
            assert device is not None
            last = device.read(kept[0].nbytes, kept[0].pointer) if kept else b"none"
            kept[:] = [on_device(observation)]
            kept[0].wait(device)
            return last

        def back(observation: Observation) -> None:
            assert device is not None
            observation.copy_to(device, device)
            size = observation.nbytes
            tensor = Tensor({"data": (device.pointer, True), "shape": (size,), "typestr": "|i1"})
            strided = Tensor({**tensor.__cuda_array_interface__, "strides": (2,)})
            for wrong, error in ((strided, ValueError), (object(), TypeError)):
                # One that was taken would be the answer, and the one below a second.
                with contextlib.suppress(error):
                    observation.answer(wrong)  # type: ignore[arg-type]
            observation.answer(tensor, device)

        def named(observation: Observation) -> Tensor:
            assert device is not None
            observation.copy_to(device, device)
            interface = {"data": (device.pointer, False), "shape": (observation.nbytes,)}
            return Tensor({**interface, "typestr": "|u1", "stream": device.cuda_stream})

        def fallback(observation: Observation) -> bytes:
            assert device is not None
            assert observation.device is None
            observation.copy_to(device, device)
            errors = json.dumps(worker.device_errors).encode()
            return errors if observation.nbytes == 1 else device.read(observation.nbytes)

        def late(observation: Observation) -> bytes:
            nonlocal before
            assert device is not None
            last = device.read(before) if before else b"none"
            before = observation.nbytes
            observation.copy_to(device, device)
            observation.used_by(device)
            return last

        def state(observation: Observation) -> bytes:
            problems = []
            for attempt in (
                lambda: observation.copy_to(object()),
                lambda: observation.used_by("stream"),
            ):
                try:
                    attempt()
                except Exception as error:
                    problems.append(type(error).__name__)
            said = {
                "pinned": worker.pinned,
                "errors": worker.pin_errors,
                "pointer": observation.device_pointer,
                "problems": problems,
            }
            return json.dumps(said).encode()

        try:
            worker.serve(locals()[sys.argv[1]])
        finally:
            kept.clear()
            if device is not None:
                device.close()


if __name__ == "__main__":
    main()

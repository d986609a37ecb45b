"""A worker with page-locked slots, on a driver that is found as `libcuda.so.1`. What was seen is the action:

`echo`   the payload, by way of the device
`late`   what the device has of the observation *before* this one, whose slot was given back at once
`state`  what the worker says of itself
"""

import ctypes
import json
import signal
import sys

from sidecar import Observation, Worker

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

    def read(self, size: int) -> bytes:
        into = ctypes.create_string_buffer(size)
        stream = ctypes.c_void_p(self.cuda_stream)
        pointer = ctypes.c_uint64(self.pointer)
        self.call("cuMemcpyDtoHAsync_v2", into, pointer, ctypes.c_size_t(size), stream)
        self.call("cuStreamSynchronize", stream)
        return into.raw

    def close(self) -> None:
        self.call("cuStreamDestroy_v2", ctypes.c_void_p(self.cuda_stream))
        self.call("cuMemFree_v2", ctypes.c_uint64(self.pointer))
        self.call("cuDevicePrimaryCtxRelease_v2", 0)


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
            worker.serve({"echo": echo, "late": late, "state": state}[sys.argv[1]])
        finally:
            if device is not None:
                device.close()


if __name__ == "__main__":
    main()

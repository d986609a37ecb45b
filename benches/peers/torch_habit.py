#!/usr/bin/env python3
"""What people do today with the bytes of an observation. Reads sizes, one a line; answers with nanoseconds.

From having the bytes, as a WebSocket client gives them, to having them on the GPU. Says "ready VERSION" first, or
"missing WHY".
"""

import sys
import time
import warnings

try:
    import torch
except ImportError as error:
    print(f"missing {error}", flush=True)
    sys.exit()
if not torch.cuda.is_available():
    print(f"missing torch {torch.__version__} sees no GPU", flush=True)
    sys.exit()

# Bytes cannot be written, which it says on the first of them.
warnings.filterwarnings("ignore", message="The given buffer is not writable")


def main() -> None:
    # The first use makes the context.
    torch.frombuffer(b"\1", dtype=torch.uint8).to("cuda")
    torch.cuda.synchronize()
    print(f"ready torch {torch.__version__}", flush=True)
    for line in sys.stdin:
        payload = b"\1" * int(line)
        begun = time.perf_counter_ns()
        tensor = torch.frombuffer(payload, dtype=torch.uint8).to("cuda")
        torch.cuda.synchronize()
        print(time.perf_counter_ns() - begun, flush=True)
        del tensor


main()

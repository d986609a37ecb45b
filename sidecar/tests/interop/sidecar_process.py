"""The sidecar under test, as a process: started, listened to, ended, and searched for what it left behind."""

import asyncio
import contextlib
import json
import mmap
import os
import signal
import subprocess
import tempfile
from pathlib import Path

from checks import Stop

ENDS_WITHIN = 5.0
# Counters that stay at 0 unless something goes wrong; those that the Rust tests' watcher reads.
TROUBLE = ("poisoned", "dropped_frames", "dropped_actions", "failed", "too_large", "resent")


class SidecarProcess:
    """One run of the binary with a region of its own and nothing of the caller's home directory."""

    def __init__(self, binary: str, driver: str, job: str, token: str) -> None:
        self.binary = binary
        self.driver = driver
        self.job = job
        self.token = token
        self.region = Path(f"/dev/shm/sidecar-interop-{os.getpid()}")
        self.kept = Path(f"{self.region}.kept")
        # A file, not a pipe: waiting for a pipe would also wait for whatever outlives the sidecar.
        self.log = tempfile.TemporaryFile()
        self.home = tempfile.TemporaryDirectory(prefix="sidecar-interop-home-")

    async def start(self, port: int) -> None:
        """Starts it against a gateway on this port, with the built-in echo worker as its child."""
        region = str(self.region)
        environment = {
            name: value for name, value in os.environ.items() if name not in ("CHALLENGE_TOKEN", "JOB_UUID")
        }
        environment |= {"JOB_TOKEN": self.token, "HOME": self.home.name, "NO_COLOR": "1"}
        try:
            process = await asyncio.create_subprocess_exec(
                self.binary,
                *("--gpu", "none", "--shm", region, "--job", self.job),
                *("--endpoint", f"ws://127.0.0.1:{port}/tunnel"),
                *("--action-bytes", str(4 * 1024 * 1024), "--io", self.driver),
                *("--", self.binary, "worker", "--shm", region, "--policy", "echo"),
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=self.log,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            raise Stop(
                f"{self.binary} cannot be started ({error}): build it, `cargo build --release`"
            ) from error
        self.ended = asyncio.create_task(process.wait())

    def output(self) -> str:
        """What it and its worker have printed so far."""
        descriptor = self.log.fileno()
        # pread: the processes write at the offset that they share with us.
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def region_holds_token(self) -> bool:
        """Whether the token's bytes lie anywhere in the shared region."""
        with self.region.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as region:
            return region.find(self.token.encode()) >= 0

    def keep_region(self) -> None:
        """Gives the region a second name: its own is gone when the sidecar has ended in order."""
        os.link(self.region, self.kept)

    def noted(self) -> dict[str, int]:
        """What the region's error log and its counters of trouble hold, as `sidecar stat` tells it."""
        command = [self.binary, "stat", "--shm", str(self.kept), "--json"]
        shown = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=ENDS_WITHIN).stdout)
        counters = {name: shown["counters"][name] for name in TROUBLE if shown["counters"][name]}
        return counters | {record["text"]: record["count"] for record in shown["errors"]}

    def files(self) -> list[Path]:
        """What there is of the region and of the socket beside it."""
        return [path for path in (self.region, Path(f"{self.region}.sock")) if path.exists()]

    def survivors(self) -> list[int]:
        """Processes that name this run's region in their arguments: the sidecar and its worker."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    arguments = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if str(self.region).encode() in arguments:
                    found.append(int(entry.name))
        return found

    async def survivors_after(self, seconds: float) -> list[int]:
        """`survivors` once they are none, or as they are after the deadline."""
        deadline = asyncio.get_running_loop().time() + seconds
        while (found := self.survivors()) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)
        return found

    async def clean_up(self) -> None:
        """Ends whatever of this run is still there and removes its files; does nothing after a clean end."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            for process in self.survivors():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, how)
            if not await self.survivors_after(ENDS_WITHIN):
                break
        for path in (*self.files(), self.kept):
            path.unlink(missing_ok=True)
        self.home.cleanup()

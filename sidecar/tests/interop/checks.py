"""Checks that are printed as they happen and counted at the end."""


class Stop(Exception):
    """The run cannot go on: what was waited for did not come."""


class Checks:
    """Counts and prints. A check that fails does not end the run; `Stop` does."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0

    def check(self, name: str, holds: bool, detail: str = "") -> None:
        """Prints one line; `detail` is shown only where the check fails."""
        if holds:
            self.passed += 1
            print(f"ok    {name}", flush=True)
        else:
            self.failed += 1
            print(f"FAIL  {name}{': ' if detail else ''}{detail}", flush=True)

    def close(self) -> int:
        """Prints the closing line; the exit code of the program."""
        print(f"{self.passed} passed, {self.failed} failed", flush=True)
        return 1 if self.failed or not self.passed else 0


def difference(expected: bytes, got: bytes) -> str:
    """Where two payloads part, in a line; empty when they are equal."""
    if expected == got:
        return ""
    if len(expected) != len(got):
        return f"{len(got)} bytes instead of {len(expected)}"
    at = next(index for index, pair in enumerate(zip(expected, got)) if pair[0] != pair[1])
    return f"byte {at} of {len(expected)} is {got[at]:#04x} instead of {expected[at]:#04x}"

#!/usr/bin/env python3
"""The Autobahn test suite against a client.

    autobahn.py CLIENT EXPECTED [CASE]...

Serves the suite's cases on a port of its own, lets CLIENT (called with host and port) play them, and compares every
verdict with the file EXPECTED; with CASE (an id or a glob such as `6.4.*`) only those. Exit code 0: each verdict is
the expected one. Everything else is printed as the line that the file would need, and fails.
"""

import asyncio
import fnmatch
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import kosoku

SKIP = "SKIP"
# The suite takes a quarter of a minute; this only keeps a broken run from waiting for ever.
WHOLE_RUN = 240.0
# From the client's end to the server's last word.
LAST_WORD = 30.0

# On the messages, on the end, and the close code that the client sent.
Verdict = tuple[str, str, str]


def expectations(path: Path) -> tuple[dict[str, Verdict], list[str]]:
    """What each case is expected to come to, and what is skipped. Whatever is not simply OK carries its reason."""
    cases: dict[str, Verdict] = {}
    skipped: list[str] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text, _, reason = line.partition("#")
        words = text.split()
        if not words:
            continue
        where = f"{path.name}:{number}"
        if words[1:3] != ["OK", "OK"] and not reason.strip():
            sys.exit(f"{where}: {line!r} gives no reason")
        if words[1:] == [SKIP]:
            skipped.append(words[0])
        elif len(words) == 4 and words[0] not in cases:
            cases[words[0]] = (words[1], words[2], words[3])
        else:
            sys.exit(f"{where}: {line!r} is no expectation, or the second one for its case")
    return cases, skipped


def verdict(result: Any) -> Verdict:
    """What a case came to, in the suite's own words, each without spaces."""
    messages, end = (verdict.value.replace(" ", "-") for verdict in (result.behavior, result.behavior_close))
    return messages, end, str(result.remote_close_code or "-")


async def play(client: str, chosen: list[str], skipped: list[str]) -> dict[str, Verdict]:
    """Serves the cases until the client has played them; what each came to."""
    async with kosoku.run_fuzzingserver(chosen or None, skipped, port=0) as server:
        process = await asyncio.create_subprocess_exec(client, f"{server.address}:{server.port}")
        try:
            code = await asyncio.wait_for(process.wait(), WHOLE_RUN)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if code != 0:
            sys.exit(f"the client ended with exit code {code}")
        try:
            results = await asyncio.wait_for(server.get_result(), LAST_WORD)
        except kosoku.FailureError as failure:
            results = failure.results
    return {result.case_id: verdict(result) for result in results}


def main() -> None:
    """Plays and compares."""
    if len(sys.argv) < 3:
        sys.exit("usage: autobahn.py CLIENT EXPECTED [CASE]...")
    client, path, *chosen = sys.argv[1:]
    expected, skipped = expectations(Path(path))
    if chosen:
        expected = {case: expected[case] for case in expected if any(fnmatch.fnmatch(case, one) for one in chosen)}
    played = asyncio.run(play(client, chosen, skipped))
    different = 0
    for case in sorted(expected.keys() | played.keys(), key=lambda case: [int(part) for part in case.split(".")]):
        if played.get(case) != expected.get(case):
            different += 1
            came = " ".join(played.get(case, ("was", "not", "played")))
            print(f"{case} {came}  # expected: {' '.join(expected.get(case, ('nothing',)))}")
    counted = Counter(" ".join(dict.fromkeys(came[:2])) for came in played.values())
    verdicts = ", ".join(f"{count} {came}" for came, count in counted.most_common())
    print(f"{len(played)} cases played: {verdicts}; {different} not as expected; skipped: {' '.join(skipped)}")
    sys.exit(different != 0 or not played)


if __name__ == "__main__":
    main()

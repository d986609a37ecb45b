"""Every error has a code that stays the same, and that is the one of sidecar.h."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import sidecar
from gateway import Rig

HEADER = Path(__file__).resolve().parents[2] / "c/include/sidecar.h"
Played = tuple[Rig, sidecar.Worker]


def test_codes_are_those_of_the_header() -> None:
    defined = {
        name: int(value)
        for name, value in re.findall(r"#define sidecar_(\w+) \(?(-?\d+)\)?$", HEADER.read_text(), re.M)
    }
    assert {code.name: defined.get(code.name) for code in sidecar.Code} == {
        code.name: code.value for code in sidecar.Code
    }


def test_every_exception_has_a_code_of_its_own() -> None:
    classes = [
        one
        for one in vars(sidecar).values()
        if isinstance(one, type)
        and issubclass(one, sidecar.SidecarError)
        and one not in (sidecar.SidecarError, sidecar.AttachError)
    ]
    assert len(classes) == 10
    codes = [one.code for one in classes]
    assert len(set(codes)) == len(codes) and sidecar.Code.ERR_BUG not in codes


def test_who_is_in_the_way_is_told(rig: Rig) -> None:
    with sidecar.Worker(rig.shm):
        with pytest.raises(sidecar.Refused) as caught:
            sidecar.Worker(rig.shm)
        assert caught.value.code == sidecar.Code.ERR_REFUSED == -201
        assert caught.value.pid == os.getpid()
    with pytest.raises(sidecar.NoSidecar) as none:
        sidecar.Worker(f"{rig.shm}-not", timeout=0)
    assert none.value.code is sidecar.Code.ERR_NO_SIDECAR


def test_what_can_not_be_done_now_has_the_code_for_it(played: Played) -> None:
    rig, worker = played
    rig.observe("one", b"x")
    observation = worker.take(10)
    reserved = observation.reserve(1)
    observation.answer(b"y")
    assert rig.action()[1] == b"y"
    with pytest.raises(sidecar.StateError, match="answered already") as caught:
        observation.answer(b"z")
    assert caught.value.code is sidecar.Code.ERR_STATE and isinstance(caught.value, RuntimeError)
    rig.observe("one", b"x")
    other = worker.take(10)
    with pytest.raises(sidecar.StateError, match="reserved by observation") as mixed:
        other.answer(reserved)
    assert mixed.value.code is sidecar.Code.ERR_MISMATCH
    other.release()
    with pytest.raises(sidecar.StateError, match="released"):
        other.answer(b"z")
    worker.close()
    with pytest.raises(sidecar.SidecarError, match="closed"):
        worker.next(0)

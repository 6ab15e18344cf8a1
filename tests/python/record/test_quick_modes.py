# SPDX-License-Identifier: Apache-2.0
"""torch's ambient state is told by its C++ as by its Python."""

from __future__ import annotations

import struct
from concurrent import futures

import pytest
import torch
from ambient_states import SEEN, VALUES, Functions

from anabranch import _compat
from anabranch._compat import torch_modes
from anabranch._record import quick

pytestmark = [pytest.mark.oldest, pytest.mark.skipif(
    not quick.is_compiled, reason="there is no compiled module")]
AROUND = VALUES | SEEN


def compared():
    """What C++ tells in each call."""
    rows = _compat.modes_in_cpp()
    by_keys = _compat.told_by_keys(rows)
    return {i: row for i, row in rows.items() if i not in by_keys}


@pytest.mark.parametrize("name", AROUND)
def test_torchs_cpp_tells_of_each_mode_what_its_python_does(name):
    before, in_python = quick.modes_told(), _compat.modes()
    assert quick.modes_are(before) and quick._modes_are(in_python)
    with AROUND[name]():
        assert not quick.modes_are(before) and not quick._modes_are(in_python)
        assert quick.is_intercepted() == _compat.is_intercepted() == (name in SEEN)
        assert quick.modes_are(quick.modes_told())
        words = struct.unpack_from(f"{len(compared())}Q", quick.modes_told()[0])
        assert _compat.are_told(compared(), words) == list(compared())
    assert quick.modes_are(before) and quick._modes_are(in_python)
    assert not quick.is_intercepted() and not _compat.is_intercepted()


def test_modes_are_those_of_the_thread():
    told = quick.modes_told()
    with torch.inference_mode():
        assert not quick.modes_are(told)
        with futures.ThreadPoolExecutor(1) as pool:
            assert pool.submit(quick.modes_are, told).result()


@pytest.fixture
def learned_again():
    yield
    assert quick._can_tell_modes(quick.module)


def words_told():
    return len(quick.module.modes_told()[0]) // 8 - len(_compat.SWITCHES)


@pytest.mark.parametrize("change", [
    lambda patch: patch.setattr(torch_modes, "_is_told", lambda mode, word: False),
    lambda patch: patch.setattr(torch_modes, "library_function", lambda name: 0)],
    ids=["others are told", "functions are not known"])
def test_what_torchs_cpp_does_not_tell_is_asked_of_its_python(change, monkeypatch, learned_again):
    told, known = quick.modes_told(), words_told()
    assert not quick.modes_are(told[:-1]) and not quick.modes_are(None)
    assert known == len(compared()) > 40  # all that this torch has
    change(monkeypatch)
    assert quick._can_tell_modes(quick.module) and words_told() == 0
    before = quick.modes_told()
    assert quick.modes_are(before) and not quick.modes_are(told)
    for name, around in AROUND.items():
        with around():
            assert not quick.modes_are(before) and quick.is_intercepted() == (name in SEEN)
    monkeypatch.undo()
    assert quick._can_tell_modes(quick.module) and words_told() == known and quick.modes_are(told)


def test_a_function_that_torchs_cpp_lacks_takes_none_of_the_others_away(monkeypatch, learned_again):
    known = words_told()
    named = torch_modes.library_function
    monkeypatch.setattr(torch_modes, "library_function",
                        lambda name: 0 if name == "fills_memory" else named(name))
    assert quick._can_tell_modes(quick.module) and words_told() == known - 1
    before = quick.modes_told()
    with VALUES["no fills"]():
        assert not quick.modes_are(before)
    assert quick.modes_are(before)


def test_a_default_device_is_a_state_and_nobody_who_sees_operators():
    told = quick.modes_told()
    with torch.device("meta"):
        other = quick.modes_told()
        assert not quick.modes_are(told) and not quick.is_intercepted()
        with Functions():
            assert quick.is_intercepted() and not quick.modes_are(other)
    with torch.device("meta"):
        assert quick.modes_are(other)
    with torch.device("cpu"):
        assert not quick.modes_are(other) and not quick.modes_are(told)

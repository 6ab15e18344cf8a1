# SPDX-License-Identifier: Apache-2.0
"""What a recorded step's Python changes, which launches do not, is named in a warning."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
from test_walk import Launched, Net, X, as_on_a_gpu, recorded  # noqa: F401

import anabranch

pytestmark = pytest.mark.oldest


def told_while(call):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in found if issubclass(one.category, anabranch.RecordWarning)]


def test_what_python_changes_in_each_call_is_told_once_since_launches_do_not():
    net, log = Net(), SimpleNamespace(steps=0, is_whole=False)
    net.calls = 0

    def step(x):
        net.calls += 1
        log.steps += 1
        log.is_whole = log.steps % 2 == 0
        return [net.head.weight]

    [told] = told_while(lambda: recorded(step))
    for name in ("log.steps", "log.is_whole", "net.calls"):
        assert name in told
    assert "launches do not" in told and "guard=" in told and "[E0334]" in told


def test_what_python_fills_once_is_not_told():
    net, cache = Net(), SimpleNamespace(size=None, table={})

    def step(x):
        if cache.size is None:
            cache.size, cache.table["rows"] = 2, 2
        return [net.head.weight]

    assert told_while(lambda: recorded(step)) == []


def test_without_guards_no_count_is_told():
    net, log = Net(), SimpleNamespace(steps=0)

    def step(x):
        log.steps += 1
        return [net.head.weight]

    def call():
        made = anabranch.record(step, guards=False)
        for _ in range(4):
            made(X)

    assert told_while(call) == []


def test_what_ddp_notes_of_its_buffers_stays_a_guard_and_is_not_told():
    """In steps that are recorded it does not matter, see reducers.py; in others it does."""
    net = Net()
    net.require_forward_param_sync = True

    def step(x):
        net.require_forward_param_sync = False
        return [net.head.weight]

    made = anabranch.record(step)

    def call(flag):
        net.require_forward_param_sync = flag
        return isinstance(made(X), Launched)

    assert told_while(lambda: [call(True) for _ in range(2)]) == []
    assert [call(True), call(False), call(True)] == [True, False, True]

# SPDX-License-Identifier: Apache-2.0
"""What Python's garbage does while a step is recorded, and behind it."""

from __future__ import annotations

import gc
import weakref

import pytest

from anabranch._record.memory.garbage import collect_of_late, no_collection


class Ring:
    def __init__(self):
        self.itself = self


@pytest.fixture(autouse=True)
def _as_in_a_program():
    """The suite has frozen what it has imported."""
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.enable()
    yield
    gc.enable()
    gc.unfreeze()
    if is_frozen:
        gc.freeze()


def test_a_try_that_collects_by_itself_brings_no_look_through_the_whole_process():
    whole = []

    def note(phase, info):
        if phase == "start" and info["generation"] == 2:
            whole.append(info)

    gc.collect()
    gc.disable()
    # So many more that Python takes a look through all to be worth while.
    young = [[] for _ in range(len(gc.get_objects()) // 2)]
    gc.callbacks.append(note)
    gc.enable()
    try:
        with no_collection():
            for _ in range(gc.get_threshold()[2] + 5):
                collect_of_late()
        made = [[] for _ in range(5000)]
    finally:
        gc.callbacks.remove(note)
    assert not whole and gc.isenabled()
    del young, made


def test_what_a_try_leaves_is_found_like_any_garbage():
    with no_collection():
        ring = Ring()
        late = weakref.ref(ring)
        del ring
    assert late() is None  # it was young
    ring = Ring()
    with no_collection():
        old = weakref.ref(ring)
    del ring
    gc.collect()
    assert old() is None and gc.get_freeze_count() == 0


def test_what_the_user_has_frozen_stays_frozen():
    theirs = [[]]
    gc.freeze()
    with no_collection():
        collect_of_late()
    assert gc.get_freeze_count() and not any(one is theirs for one in gc.get_objects())
    gc.unfreeze()
    with no_collection():
        collect_of_late()
    assert any(one is theirs for one in gc.get_objects())


def test_who_has_turned_collection_off_finds_it_off():
    gc.disable()
    with no_collection():
        pass
    assert not gc.isenabled()

# SPDX-License-Identifier: Apache-2.0
"""Programs that people have written, in which something changes in the middle: recorded on tapes,
they are as eager. tests/gpu/python/test_changes_between_calls.py asks the same of a GPU."""

from __future__ import annotations

import pytest
from changes_between_calls import BY_NAME, are_same, eager
from known_wrong import PROGRAMS

import anabranch


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xfail(
    name in PROGRAMS, reason="known to be wrong", strict=True)) for name in BY_NAME])
def test_a_program_that_changes_in_the_middle_is_as_eager(name):
    assert are_same(BY_NAME[name](anabranch.record), eager(name))

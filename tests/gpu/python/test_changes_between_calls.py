# SPDX-License-Identifier: Apache-2.0
"""Programs that people have written, in which something changes in the middle that the step's
Python reads or writes: recorded, they are as eager over the change."""

from __future__ import annotations

import pytest
from changes_between_calls import BY_NAME, are_same, eager

import anabranch


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BY_NAME)
def test_a_program_that_changes_in_the_middle_is_as_eager(name):
    assert are_same(BY_NAME[name](anabranch.record), eager(name))

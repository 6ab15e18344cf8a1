# SPDX-License-Identifier: Apache-2.0
"""What processes that have collectives together find out before one of them records. None waits for
others that do not come. What each process does is in rendezvous_processes.py."""

from __future__ import annotations

import pytest
from processes import run_processes

pytestmark = [pytest.mark.own, pytest.mark.oldest]


@pytest.mark.parametrize("ranks, whats", [
    (2, ["nothing_in_common", "all_come", "some_do_not_come", "who_comes_late",
         "who_knows_tells_those_that_wait", "the_largest_group_speaks_for_others"]),
    (4, ["groups_that_cross", "groups_in_a_row", "some_do_not_come"]),
], ids=["two", "four"])
def test_processes_record_together_or_not_at_all(ranks, whats, tmp_path):
    run_processes("rendezvous_processes.py", ranks, tmp_path / "store", *whats)

# SPDX-License-Identifier: Apache-2.0
"""Whatever changes between two calls, a launch is as eager: some changes of each program, and all
that are known to be missed. ``run.py`` runs all."""

from __future__ import annotations

import pytest
from campaign import FAULTS, LAUNCHED, TRIED, planned, planned_unread, run, some
from known_wrong import ARE_NEEDLESS_MANY, CHANGES
from side_by_side import names_of_programs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", names_of_programs())
def test_no_launch_misses_a_change(name):
    tried = [plan for plan in some(planned(name), TRIED) if plan.place not in CHANGES.get(name, {})]
    assert not [row for row in run(name, tried) if row.verdict in FAULTS]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CHANGES)
def test_what_is_known_to_be_missed_still_is(name):
    """A place whose change is not missed any more is taken out of known_wrong.py."""
    wrong = set()
    for plan in planned(name):
        if CHANGES[name].get(plan.place) == (plan.change, plan.when):
            wrong |= {row.place for row in run(name, [plan]) if row.verdict in FAULTS}
    assert wrong == {place for place, change in CHANGES[name].items() if change}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.xfail(ARE_NEEDLESS_MANY, reason="known to be wrong", strict=True)
def test_what_is_not_read_makes_hardly_any_new_recording():
    rows = [row for name in names_of_programs()[::2]
            for row in run(name, some(planned_unread(name), TRIED), has_unread=True)]
    assert not [row for row in rows if row.verdict in FAULTS]
    anew = [row for row in rows if row.is_base_launched and row.verdict != LAUNCHED]
    assert len(anew) <= 0.01 * len(rows)

# SPDX-License-Identifier: Apache-2.0
"""What a step's Python writes is behind 20 calls as eager leaves it: each write alone, and some at
once. ``run.py`` runs more."""

from __future__ import annotations

import pytest
from campaign import FAULTS, run_written
from known_wrong import WRITES as KNOWN
from written import WRITES, drawn, source_of


@pytest.mark.filterwarnings("ignore")
def test_each_write_is_repeated_but_for_those_that_are_known_not_to_be():
    rows = [run_written(write.name, source_of([write])) for write in WRITES]
    assert [row.place for row in rows if row.verdict in FAULTS] == KNOWN


@pytest.mark.filterwarnings("ignore")
def test_steps_of_several_writes_that_are_repeated_alone_are_right():
    seeds = [seed for seed in range(200)
             if not {write.name for write in drawn(seed)}.intersection(KNOWN)][:40]
    rows = [run_written(f"seed {seed}", source_of(drawn(seed), seed)) for seed in seeds]
    assert not [row for row in rows if row.verdict in FAULTS]

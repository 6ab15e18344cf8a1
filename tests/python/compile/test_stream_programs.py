# SPDX-License-Identifier: Apache-2.0
"""Correct programs over torch's streams: the bits of eager, and nothing told. On the CPU; the same
programs run on a GPU in tests/gpu/python.

Regions run as torch's own operators, as in test_random_streams: what is tested is how a graph is
cut and ordered. Each step is delayed by a seed.
"""

from __future__ import annotations

import pytest
from stream_places import compare_with_one_stream, host, note_reports
from stream_programs import PROGRAMS
from test_random_streams import graphs  # noqa: F401

pytestmark = [pytest.mark.own, pytest.mark.oldest]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_correct_program_gives_the_bits_of_one_stream_and_nothing_is_told(
        program, graphs, monkeypatch):  # noqa: F811
    place = host()
    if reason := place.why_not(program):
        pytest.skip(reason)
    told = note_reports(monkeypatch, place)
    compare_with_one_stream(program, place,
                            {"native_regions": False, "delay_seed": 5, "strict": True})
    assert told == []


def test_there_are_programs_of_every_kind():
    assert len(PROGRAMS) >= 60 and len({program.name for program in PROGRAMS}) == len(PROGRAMS)

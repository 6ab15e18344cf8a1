# SPDX-License-Identifier: Apache-2.0
"""The correct programs of tests/python over streams of the GPU: recorded, bit for bit those of one
stream, and nothing told of them."""

from __future__ import annotations

import pytest
from stream_places import compare_with_one_stream, gpu, note_reports
from stream_programs import PROGRAMS


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_correct_program_gives_the_bits_of_one_stream_and_nothing_is_told(program, monkeypatch):
    place = gpu()
    told = note_reports(monkeypatch, place)
    compare_with_one_stream(program, place, {})
    assert told == []

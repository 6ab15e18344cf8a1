# SPDX-License-Identifier: Apache-2.0
"""Processes of the benchmark of whole models that are set up side by side are timed one at a time."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench" / "suite"))

import standstill
from standstill import Turn, Turns

FORK = multiprocessing.get_context("fork")
LIMIT_S = 60


def worker(turn, beats, counts):
    """Beats all the time, and notes in its turn how the others' beats go on."""
    os.setsid()
    before = time.monotonic()
    while time.monotonic() - before < 0.1:  # it is set up
        beats.value += 1
    with turn:
        first = [other.value for other in counts]
        for _ in range(20):
            beats.value += 1
            time.sleep(0.005)
        last = [other.value for other in counts]
    turn.place.write_text(json.dumps([first, last]))
    os._exit(0)


@pytest.fixture
def run(tmp_path):
    def run(target, count=3):
        beats = [FORK.Value("q", 0, lock=False) for _ in range(count)]
        running = []
        for i in range(count):
            turn = Turn(tmp_path / f"process-{i}")
            process = FORK.Process(target=target, args=(turn, beats[i], beats))
            process.start()
            running.append((turn, process))
        turns, end = Turns(), time.monotonic() + LIMIT_S
        while any(process.is_alive() for _, process in running):
            assert time.monotonic() < end
            turns.look(running)
            time.sleep(0.01)
        turns.look(running)
        return running, turns

    return run


def test_while_one_is_timed_the_others_stand_still(run):
    running, turns = run(worker)
    assert turns.is_free
    for i, (turn, _) in enumerate(running):
        first, last = json.loads(turn.place.read_text())
        assert last[i] == first[i] + 20
        assert [last[other] - first[other] for other in range(3) if other != i] == [0, 0]


def test_who_has_had_fewest_turns_is_next(tmp_path, monkeypatch):
    monkeypatch.setattr(standstill, "signal_all", lambda processes, number: None)
    running = [(Turn(tmp_path / f"process-{i}"), SimpleNamespace(is_alive=lambda: True))
               for i in range(3)]
    turns, told = Turns(), []

    def ask(number):
        running[number][0].place.with_suffix(".asked").touch()

    for i in range(3):
        ask(i)
    for _ in range(7):
        turns.look(running)
        [now] = [i for i, (turn, _) in enumerate(running)
                 if turn.place.with_suffix(".given").exists()]
        told.append(now)
        running[now][0].place.with_suffix(".over").touch()
        turns.look([])
        ask(now)  # and is first in the row
    assert told == [0, 1, 2, 0, 1, 2, 0]


def dying(turn, beats, counts):
    os.setsid()
    turn.__enter__()
    os._exit(1)


def test_a_process_that_dies_in_its_turn_stops_nobody(run):
    running, turns = run(dying)
    assert turns.is_free and all(process.exitcode == 1 for _, process in running)

# SPDX-License-Identifier: Apache-2.0
"""Programs run on tapes where there is no GPU, and on one thread: their tensors are tiny."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "programs"))

from counted_runs import count_runs
from tape_recording import OnTape


@pytest.fixture(autouse=True)
def on_tape(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        OnTape(monkeypatch)
    count_runs(monkeypatch)
    yield
    torch.set_num_threads(before)

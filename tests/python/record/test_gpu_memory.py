# SPDX-License-Identifier: Apache-2.0
"""What torch has cached is given back where nobody can be using it."""

from __future__ import annotations

import pytest
import torch

from anabranch._record.memory import gpu

pytestmark = pytest.mark.oldest


def test_the_gpus_are_idle_when_their_cache_is_given_back(monkeypatch):
    """With expandable segments torch waits for one stream of each, and not for all that read
    there."""
    done = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0 if device == 1 else 1 << 20)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: done.append(device))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("empty"))
    gpu.empty_cache()
    assert done == [0, 2, "empty"]

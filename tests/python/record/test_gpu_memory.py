# SPDX-License-Identifier: Apache-2.0
"""What torch has cached is given back where nobody can be using it, and how much slack there is."""

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


def test_slack_is_a_share_of_what_a_process_may_have_of_the_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5, 1 << 30))
    for fraction, slack in ((1.0, 1 << 20), (0.5, 1 << 19), (2.0, 1 << 20)):
        monkeypatch.setattr(gpu._compat, "memory_fraction", lambda device, of=fraction: of)
        assert gpu.slack_bytes(0) == slack

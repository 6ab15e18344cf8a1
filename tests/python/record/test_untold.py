# SPDX-License-Identifier: Apache-2.0
"""What code is told that asks, while a step is captured, whether it is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from anabranch._record.capture.capture import _untold
from anabranch._record.refusals import BrokeUntold, BrokeWhileNoted, NotRecordable

pytestmark = pytest.mark.oldest


@pytest.fixture(autouse=True)
def captured(monkeypatch):
    """All streams are, and `now` is the current one."""
    state = SimpleNamespace(now="captures")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: state.now)
    return state


def step(**options):
    return SimpleNamespace(**{"is_told": False, "is_compiled": False, "stream": "captures",
                              **options})


def asked_by(module):
    """What code of a module hears."""
    there = {"torch": torch, "__name__": module}
    exec("def ask(): return torch.cuda.is_current_stream_capturing()", there)
    return there["ask"]()


def test_code_outside_torch_is_told_that_it_is_not():
    truth = torch.cuda.is_current_stream_capturing
    with _untold(step()):
        assert not asked_by("transformers.masking") and not asked_by("torchvision.ops")
        assert asked_by("torch.optim.optimizer")
        assert asked_by("anabranch._record.capture.access_notes")
    assert torch.cuda.is_current_stream_capturing is truth


def test_somebody_elses_capture_is_not_hidden(captured):
    with _untold(step()):
        captured.now = "another stream"
        assert asked_by("somebody")


@pytest.mark.parametrize("options", [{"is_told": True}, {"is_compiled": True}], ids=str)
def test_nothing_is_hidden_from_steps_that_are_told_and_from_compiled_graphs(options):
    with _untold(step(**options)):
        assert asked_by("somebody")


def test_what_breaks_after_it_has_asked_is_tried_again():
    with pytest.raises(BrokeUntold, match="while it was captured: .item.. of a tensor"), \
            _untold(step()):
        asked_by("somebody")
        raise RuntimeError(".item() of a tensor")
    for error in (RuntimeError("of another kind"), BrokeWhileNoted("with notes")):
        with pytest.raises(type(error)) as raised, _untold(step()):
            asked_by("torch.optim")
            raise error
        assert not isinstance(raised.value, BrokeUntold)
    with pytest.raises(NotRecordable) as raised, _untold(step()):
        asked_by("somebody")
        raise BrokeWhileNoted("with notes")
    assert isinstance(raised.value, BrokeWhileNoted)

# SPDX-License-Identifier: Apache-2.0
"""Signatures that are too many run plainly, hold nothing, and say what tells them apart."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from anabranch import config
from anabranch._record import recorder as recorder_module
from anabranch._record.signature import ARGUMENTS_ALONE, explain_difference, signature_of
from anabranch._record.state.state import NO_STATE, State
from anabranch.errors import RecordError

pytestmark = pytest.mark.oldest


def recorder(**options):
    return recorder_module.Recorder(lambda leaves: leaves[0] + 1, config.resolve(
        {"max_recordings": 2, **options}), "step", takes_gradients=False)


def run(made, key):
    return made.run(key, [key], NO_STATE, lambda: f"({key})")


def test_signatures_that_are_too_many_share_one_entry():
    made = recorder()
    assert [run(made, i) for i in range(1000)] == list(range(1, 1001))
    assert len(made.specializations) == 2 and made.is_full
    *known, beyond = made.reports()
    assert [report.calls for report in known] == [1, 1] and beyond.calls == 998
    assert "there are 2 signatures already" in beyond.reason and "(2) and" in beyond.inputs
    assert not made.is_refused  # nothing was wrong with it


def test_signatures_that_are_too_many_raise_under_strict():
    made = recorder(strict=True)
    run(made, 0), run(made, 1)
    for key in (2, 3, 2):
        with pytest.raises(RecordError, match="2 signatures already"):
            run(made, key)


def key_of(model, *leaves):
    return signature_of([ARGUMENTS_ALONE, *leaves], State([lambda: model]), None)


def test_what_tells_a_signature_from_the_nearest_is_named():
    model = nn.Linear(2, 2)
    x, other = torch.ones(2), torch.ones(3)
    keys = [key_of(model, x, 0), key_of(model, other, 0)]
    assert explain_difference(key_of(model, x, 0), keys) == ""
    assert explain_difference(key_of(model, x, 1), keys).endswith("nearest in argument 2")
    assert explain_difference(key_of(model, x), keys).endswith("nearest in argument 2")
    model.eval()
    assert explain_difference(key_of(model, x, 0), keys).endswith("which modules train")
    with torch.no_grad():
        assert "torch's modes, which modules" in explain_difference(key_of(model, x, 0), keys)

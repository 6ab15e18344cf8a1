# SPDX-License-Identifier: Apache-2.0
"""torchtitan's own trainer, 0.2.2, on the GPU, with the lines of docs/clients.md and without."""

from __future__ import annotations

import pytest

pytest.importorskip("torchtitan.train", reason="torchtitan is not installed", exc_type=ImportError)

from compare import assert_same
from recordings import assert_launched
from torchtitan_training import train

import anabranch

STEPS = 12


def test_blocks_and_loss_compiled_by_its_option_are_recorded(tmp_path, recwarn):
    compiled = train(tmp_path, "--compile.enable", steps=STEPS)
    ours = train(tmp_path, "--compile.enable", "--compile.backend=anabranch", steps=STEPS)
    assert ours.losses == pytest.approx(compiled.losses, rel=2e-3)
    assert not [one for one in recwarn if issubclass(one.category, anabranch.RecordWarning)]


@pytest.mark.parametrize("options", [
    ("--activation_checkpoint.mode=none",),
    ("--activation_checkpoint.mode=none", "--training.global_batch_size=2"),
    ("--compile.enable",),
], ids=["eager", "accumulates", "compiled"])
def test_recorded_parts_leave_what_they_leave_unrecorded(options, tmp_path):
    parts = []

    def record(trainer):
        step = anabranch.record(trainer.forward_backward_step, guards=False)
        trainer.forward_backward_step = step
        trainer.optimizers.step = anabranch.record(trainer.optimizers.step)
        parts.extend((trainer.forward_backward_step, trainer.optimizers.step))

    recorded = train(tmp_path, *options, steps=STEPS, prepare=record)
    plain = train(tmp_path, *options, steps=STEPS)
    assert recorded.losses == plain.losses
    assert recorded.norms == plain.norms
    assert_same(recorded.weights, plain.weights)
    for part in parts:
        assert_launched(part, STEPS - 4)

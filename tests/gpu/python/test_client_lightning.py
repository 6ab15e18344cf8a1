# SPDX-License-Identifier: Apache-2.0
"""Lightning over a module whose whole step is recorded, on the GPU: losses and weights are bit for
bit those of the plain one. A part that is compiled in place is in test_clients.py."""

from __future__ import annotations

import pytest

pytest.importorskip("lightning", reason="lightning is not installed")

from compare import assert_same
from lightning_modules import Manual, trained
from recordings import assert_launched

import anabranch

EPOCHS = 6


def test_a_step_that_is_recorded_leaves_what_it_leaves_unrecorded():
    module = Manual(anabranch.record)
    assert_same(trained(module, "gpu", EPOCHS), trained(Manual(), "gpu", EPOCHS))
    assert_launched(module.step, 10)

# SPDX-License-Identifier: Apache-2.0
"""Lightning over modules of which a part is compiled, or whose step is recorded, on the CPU: losses
and weights are those of the plain module. Nothing is recorded here."""

from __future__ import annotations

import pytest

pytest.importorskip("lightning", reason="lightning is not installed: make test-clients")

from compare import Tolerance, assert_same
from lightning_modules import Manual, Plain, trained

import anabranch

pytestmark = pytest.mark.filterwarnings("ignore:.*torch finds no GPU:anabranch.RecordWarning")


def test_a_module_whose_part_is_compiled_in_place_trains_as_eager_does():
    module = Plain()
    module.net.compile(backend=anabranch.backend)
    assert_same(trained(module), trained(Plain()), Tolerance(1e-4, 1e-5))


def test_a_step_that_is_recorded_leaves_what_the_same_step_and_lightnings_own_leave():
    found = trained(Manual(anabranch.record))
    assert_same(found, trained(Manual()))
    assert_same(found, trained(Plain()), Tolerance(1e-6, 1e-7))

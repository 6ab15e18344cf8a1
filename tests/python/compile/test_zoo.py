# SPDX-License-Identifier: Apache-2.0
"""Every small module: what is compiled leaves behind what eager leaves behind."""

import pytest
from compare import compare_with_eager
from zoo import ZOO

# The oldest torch is asked for training alone: inference is its forward once more.
CASES = [pytest.param(name, id=name, marks=[pytest.mark.oldest] if case.oldest else [])
         for name, case in ZOO.items()]
FORMS = [pytest.param(False, id="plain"), pytest.param(True, id="streams")]


@pytest.mark.parametrize("streams", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_training_step_equals_eager(name, streams):
    case = ZOO[name]
    compare_with_eager(case.make, case.inputs, streams=streams, tolerance=case.tolerance,
                       oracle=case.oracle)


@pytest.mark.parametrize("streams", FORMS)
@pytest.mark.parametrize("name", ZOO)
def test_inference_equals_eager(name, streams):
    case = ZOO[name]
    compare_with_eager(case.make, case.inputs, streams=streams, train=False,
                       tolerance=case.tolerance, oracle=case.oracle)

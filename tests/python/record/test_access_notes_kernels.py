# SPDX-License-Identifier: Apache-2.0
"""What is noted of kernels that Inductor generates."""

from __future__ import annotations

import inspect

import pytest
import torch
from noting import Marks, at, notes_of, overwrite, reads, tuner_of, writes
from torch._inductor.runtime.hints import HeuristicType
from torch._inductor.runtime.triton_heuristics import CachingAutotuner, DebugAutotuner

from anabranch import _compat
from anabranch._record.capture.access_notes import AccessNotes

pytestmark = pytest.mark.own


def run_noted(tuner, *args, **kwargs):
    notes, result = notes_of(lambda: tuner.run(*args, stream=0, **kwargs))
    return notes.works, result


@pytest.mark.oldest
def test_a_generated_kernel_reads_inputs_and_writes_all_other_tensors():
    names = ["in_out_ptr0", "in_ptr0", "in_ptr1", "in_ptr12", "out_ptr0", "ws_ptr",
             "semaphores_ptr", "in_ptr", "xin_ptr0", "in_ptr0_extra"]
    tensors = [torch.ones(2) for _ in names]
    tuner = tuner_of(names, ["in_ptr1"], launcher=lambda *args: args)
    works, result = run_noted(tuner, *tensors, 2)
    assert len(result) == len(names) + 1
    [work] = works
    assert reads(work) == at(tensors[1], tensors[3]) and not work.has_scratch
    assert writes(work) == at(*(tensors[i] for i in (0, 2, 4, 5, 6, 7, 8, 9)))


@pytest.mark.oldest
def test_the_fast_way_through_a_launcher_is_noted_too():
    tuner, x, y = tuner_of(["in_ptr0", "out_ptr0"]), torch.ones(2), torch.ones(2)
    assert len(run_noted(tuner, x, y, 2)[0]) == 1
    again, _ = run_noted(tuner, x, y, 2)
    assert [(reads(work), writes(work)) for work in again] == [(at(x), at(y))]


@pytest.mark.oldest
def test_of_a_kernel_that_does_not_list_what_it_writes_every_tensor_counts_as_written():
    tuner = tuner_of(["in_ptr0", "out_ptr0"], None, HeuristicType.TEMPLATE)
    x, y = torch.ones(2), torch.ones(2)
    [work], _ = run_noted(tuner, x, y, 2)
    assert writes(work) == at(x, y)


@pytest.mark.oldest
@pytest.mark.parametrize("tuner", [
    lambda: tuner_of(["in_ptr0"], kind=HeuristicType.USER_AUTOTUNE),
    lambda: tuner_of(["in_ptr0"], custom=True),
    lambda: tuner_of(["in_ptr0"], kind=None),
    lambda: tuner_of([])], ids=["user's", "custom", "of no kind", "too many arguments"])
def test_a_kernel_that_inductor_did_not_generate_gets_no_note(tuner):
    assert run_noted(tuner(), torch.ones(2), 2, 3)[0] == []


@pytest.mark.oldest
def test_a_kernel_with_an_argument_of_an_unknown_kind_gets_no_note():
    assert run_noted(tuner_of(["in_ptr0", "desc"]), torch.ones(2), object())[0] == []


@pytest.mark.oldest
@pytest.mark.parametrize("other", [lambda x: x.clone(), lambda x: overwrite(x)])
def test_a_kernel_that_runs_an_operator_first_gets_no_note(other):
    """A copy of an input that is not aligned is what the kernel then reads."""
    tuner = tuner_of(["in_ptr0"], launcher=other)
    works, _ = run_noted(tuner, torch.ones(2))
    assert all(not reads(work) or writes(work) for work in works) and len(works) <= 1


@pytest.mark.oldest
def test_a_profiling_autotuner_notes_a_launch_once():
    tuner, x = tuner_of(["in_ptr0"], cls=DebugAutotuner), torch.ones(2)
    tuner.with_bandwidth_info = False
    assert [reads(work) for work in run_noted(tuner, x)[0]] == [at(x)]


@pytest.mark.oldest
def test_an_error_of_a_launch_goes_through():
    def fail(*args):
        raise ValueError("launch failed")

    x, notes = torch.ones(2), AccessNotes(Marks(), "cpu")
    with notes.noted(), pytest.raises(ValueError, match="launch failed"):
        tuner_of(["in_ptr0"], launcher=fail).run(x, stream=0)
    assert notes.works == []


@pytest.mark.oldest
def test_the_seams_of_inductor_are_as_noting_takes_them():
    run = inspect.signature(CachingAutotuner.run)
    assert run.parameters["stream"].kind is inspect.Parameter.KEYWORD_ONLY
    kinds = {kind.name for kind in HeuristicType} - {"USER_AUTOTUNE"}
    assert kinds == set(_compat.noting._GENERATED)

# SPDX-License-Identifier: Apache-2.0
"""A call that looks like the one before it is found without asking each tensor for all it is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from anabranch import _compat
from anabranch._record.signatures import ready_calls
from anabranch._record.signatures.ready_calls import ReadyCalls
from anabranch._record.signatures.signature import ARGUMENTS_ALONE, kind_of
from anabranch._record.state.number_places import NO_NUMBERS

pytestmark = pytest.mark.oldest


class Seeing(TorchDispatchMode):
    pass


def look(calls, *arguments, guarded=None):
    return calls.look([ARGUMENTS_ALONE, *arguments], guarded, NO_NUMBERS)


@pytest.fixture
def asked(monkeypatch):
    """How often a kind was made."""
    seen = []
    monkeypatch.setattr(ready_calls, "kind_of",
                        lambda *given: (seen.append(None), kind_of(*given))[1])
    return seen


def ready_for(*arguments):
    """A callable's calls, where such arguments have come twice."""
    calls = ReadyCalls()
    kind, none = look(calls, *arguments)
    ready = SimpleNamespace(spec=SimpleNamespace(is_retired=False), state=None)
    calls.add(kind, ready)
    assert none == ()
    for _ in range(2):
        assert look(calls, *arguments) == (kind, [ready])
    return calls, kind, ready


PAIR = torch.ones(4, 4), torch.ones(3)


def test_other_tensors_that_are_alike_are_found_without_their_kind(asked):
    calls, kind, ready = ready_for(*PAIR)
    before = len(asked)
    for _ in range(3):
        assert look(calls, torch.zeros(4, 4), torch.zeros(3)) == (kind, [ready])
    assert len(asked) == before
    calls, kind, ready = ready_for()
    before = len(asked)
    assert look(calls) == (kind, [ready]) and len(asked) == before


def test_a_call_of_nothing_but_such_tensors_is_found_by_them_alone():
    """Not one that is intercepted, nor one in another mode."""
    calls, _, ready = ready_for(*PAIR)
    alike = torch.zeros(4, 4), torch.zeros(3)
    assert calls.of_args(alike) == [ready]
    assert not calls.of_args(PAIR[:1]) and not calls.of_args((*PAIR, 1))
    assert not calls.of_args((PAIR[1], PAIR[0]))
    for around in (torch.no_grad(), torch.inference_mode(),
                   torch.autograd.detect_anomaly(check_nan=False), forward_ad.dual_level(),
                   Seeing()):
        with around:
            assert not calls.of_args(alike)
    assert calls.of_args(alike) == [ready]
    calls.keep([])
    assert not calls.of_args(alike)


def test_a_call_that_something_else_belongs_to_is_not_found_by_its_tensors():
    calls = ReadyCalls()
    kind, _ = look(calls, *PAIR, guarded=1)
    ready = SimpleNamespace(spec=SimpleNamespace(is_retired=False), state=None)
    calls.add(kind, ready)
    for _ in range(3):
        assert look(calls, *PAIR, guarded=1) == (kind, [ready])
    assert not calls.of_args(PAIR)


@pytest.mark.parametrize("other", [
    torch.ones(4, 5), torch.ones(4, 4, dtype=torch.int32), torch.ones(8, 4)[::2],
    torch.ones(4, 4).t().contiguous().t(), torch.ones(4, 4, requires_grad=True),
    nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4, 4), requires_grad=False),
    torch.ones(4, 4, device="meta"), torch.ones(1, 4, 4), 1.0, None], ids=repr)
def test_what_is_another_kind_is_never_found(other):
    calls, kind, ready = ready_for(*PAIR)
    found, there = look(calls, other, PAIR[1])
    assert found != kind and there == ()
    assert look(calls, *PAIR) == (kind, [ready])


def test_another_number_of_arguments_mode_or_guard_is_another_kind():
    calls, kind, _ = ready_for(*PAIR)
    assert look(calls, PAIR[0])[1] == look(calls, *PAIR, PAIR[0])[1] == ()
    assert look(calls, *PAIR, guarded=1)[1] == ()
    with torch.no_grad():
        assert look(calls, *PAIR)[1] == ()
    with torch.inference_mode():
        assert look(calls, *PAIR)[1] == ()
    assert look(calls, *PAIR)[0] == kind


def test_a_tensor_that_comes_twice_is_found_by_its_kind():
    calls, kind, ready = ready_for(PAIR[0], PAIR[0].clone())
    for _ in range(3):
        assert look(calls, PAIR[0], PAIR[0]) == (kind, [ready])


def test_calls_that_want_gradients_or_have_numbers_are_found_by_their_kind(asked):
    for arguments in ((torch.ones(2, requires_grad=True),), (torch.ones(2), 3)):
        calls, kind, ready = ready_for(*arguments)
        before = len(asked)
        assert look(calls, *arguments) == (kind, [ready]) and len(asked) == before + 1
    calls, kind, _ = ready_for(leaf := torch.ones(2, requires_grad=True))
    leaf.grad = torch.ones(2)
    assert look(calls, leaf)[1] == ()


def test_what_has_been_let_go_of_is_found_no_more():
    calls, kind, ready = ready_for(*PAIR)
    calls.keep([])
    assert look(calls, *PAIR) == (kind, ()) and calls._front is None
    calls.add(kind, other := SimpleNamespace(spec=ready.spec, state=None))
    for _ in range(3):
        assert look(calls, *PAIR) == (kind, [other])


def test_a_torch_that_tells_no_likeness_goes_by_kinds(monkeypatch):
    monkeypatch.setattr(_compat.cuda._guards, "TensorGuards", None)
    assert _compat.likeness_of(PAIR) is None
    calls, kind, ready = ready_for(*PAIR)
    assert look(calls, *PAIR) == (kind, [ready])

# SPDX-License-Identifier: Apache-2.0
"""Random numbers that decide on the CPU which way a step goes."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch

from anabranch import _compat
from anabranch._record.capture.capture import _draws_of
from anabranch._record.capture.host_draws import DrawnOtherwise, HostDraws
from anabranch._record.refusals import Again, Cause, NotRecordable

pytestmark = pytest.mark.oldest
LAYERS = 6


def layers(share):
    """How many are left of some of which each is skipped now and then."""
    return sum(not bool(torch.rand([]) < share) for _ in range(LAYERS))


def noted(step, seed=0):
    """The draws of a step, what it answers, and the generator's state before and after it."""
    torch.manual_seed(seed)
    before, host = torch.get_rng_state(), HostDraws()
    with host.captured():
        answer = step()
    return host.draws(), answer, before, torch.get_rng_state()


@pytest.mark.parametrize("draw", [
    lambda: torch.rand([]) < 0.5, lambda: torch.rand(1) < 0.5, lambda: torch.randn([]) > 0,
    lambda: torch.randint(0, 2, ()) == 1, lambda: torch.randint(2, (1,)).bool(),
    lambda: 1 - torch.rand(()) * 2 > 0, lambda: (torch.rand(3, dtype=torch.float64) < 0.5).any()])
def test_what_is_drawn_and_asked_is_drawn_and_asked_again(draw):
    torch.manual_seed(3)
    plain = [bool(draw()) for _ in range(8)]
    draws, answer, before, after = noted(lambda: [bool(draw()) for _ in range(8)], seed=3)
    assert answer == plain
    assert draws.leads_to(before, after)
    assert type(torch.rand([])) is torch.Tensor  # behind a capture all is as it was


def test_the_generator_moves_as_the_step_would_move_it():
    draws, left, _, after = noted(lambda: layers(0.0))
    assert left == LAYERS
    torch.set_rng_state(after)
    layers(0.0)
    expected = torch.get_rng_state()
    torch.set_rng_state(after)
    with draws.repeated():
        pass
    assert torch.equal(torch.get_rng_state(), expected)


def test_where_an_answer_is_another_one_nothing_has_been_drawn():
    draws, left, *_ = noted(lambda: layers(0.5))
    ways = 0
    for seed in range(20):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        try:
            with draws.repeated():
                pass
            torch.set_rng_state(before)
            assert layers(0.5) == left
        except DrawnOtherwise:
            ways += 1
            assert torch.equal(torch.get_rng_state(), before)
    assert 0 < ways < 20


def test_where_a_launch_fails_nothing_has_been_drawn():
    draws, *_ = noted(lambda: layers(0.0))
    before = torch.get_rng_state()
    with pytest.raises(MemoryError), draws.repeated():
        raise MemoryError
    assert torch.equal(torch.get_rng_state(), before)


class Followed(float):
    """As numbers that launches follow are while a step is captured."""


@pytest.mark.parametrize("use", [
    lambda drawn: drawn.item(), float, lambda drawn: drawn.numpy(), lambda drawn: drawn.tolist(),
    lambda drawn: drawn < torch.ones([]), lambda drawn: drawn < Followed(0.5),
    lambda drawn: torch.stack([drawn, torch.ones([])]), lambda drawn: drawn.to("meta"),
    lambda drawn: drawn.mul_(2), lambda drawn: torch.zeros(2).add_(drawn),
    lambda drawn: drawn.data_ptr()])
def test_what_a_launch_could_not_see_is_refused(use):
    host = HostDraws()
    with pytest.raises(NotRecordable, match="draws random numbers on the CPU.*: it uses them in"):
        with host.captured():
            use(torch.rand([]))
    with pytest.raises(NotRecordable):  # also where the step has caught it
        host.draws()


def test_compiled_code_that_draws_is_refused():
    host = HostDraws()
    with pytest.raises(NotRecordable, match="compiled code draws them"), host.captured():
        host._compiled(torch.rand, [])


def test_what_else_draws_is_found_by_the_generator():
    def step():
        torch.empty(2).uniform_()
        return layers(0.0)

    draws, _, before, after = noted(step)
    assert not draws.leads_to(before, after)


def test_what_else_has_drawn_once_does_not_refuse_a_step_for_ever():
    draws, _, before, after = noted(lambda: layers(0.0))
    made = [SimpleNamespace(draws=SimpleNamespace(draws=lambda: draws))] * 2
    assert _draws_of(SimpleNamespace(drawn_to=after), made, before) == draws
    torch.rand([])
    with pytest.raises(Again, match="not all of them are drawn by its own code") as raised:
        _draws_of(SimpleNamespace(drawn_to=torch.get_rng_state()), made, before)
    assert raised.value.reason.code == Cause.RANDOM_ON_CPU


def test_other_threads_draw_as_ever():
    found = []
    with HostDraws().captured():
        thread = threading.Thread(target=lambda: found.append(torch.rand(2)))
        thread.start()
        thread.join()
    assert type(found[0]) is torch.Tensor


def test_what_a_step_has_kept_is_like_any_other_behind_the_capture():
    host = HostDraws()
    with host.captured():
        kept = torch.rand([])
    assert 0 <= kept.item() < 1 and bool(kept >= 0)


class Dropping(torch.nn.Module):
    """Dynamo leaves the loop to Python, since it branches, and looks at what that calls."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            if torch.rand([]) < 0.0:
                continue
            x = layer(x)
        return x


def test_around_a_compiled_model_draws_are_noted_and_nothing_is_compiled_anew():
    compiled = []

    def backend(gm, inputs):
        compiled.append(gm)
        return gm.forward

    model, x = torch.compile(Dropping(), backend=backend), torch.ones(2, 4)
    model(x)
    known = len(compiled)
    draws, *_ = noted(lambda: model(x))
    assert sum(one.answer is False for one in draws.done) == LAYERS
    assert len(compiled) == known


def test_operators_of_torch_are_back_where_a_step_raises():
    with pytest.raises(KeyError), HostDraws().captured():
        raise KeyError
    assert type(torch.rand([])) is torch.Tensor
    with _compat.operators_on_cpu({"rand": lambda size, **how: torch.zeros(size)}):
        assert torch.rand(2).tolist() == [0, 0]
    assert torch.rand(64).unique().numel() > 1

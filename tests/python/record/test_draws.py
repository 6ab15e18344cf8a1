# SPDX-License-Identifier: Apache-2.0
"""What a step takes by ``next()`` from an iterator that was there before it is an argument: launched
calls take it themselves, once, in order."""

from __future__ import annotations

import concurrent.futures
import gc
import itertools
import types
import weakref

import pytest
import torch
from tape_recording import OnTape
from torch.utils.data import DataLoader

import anabranch
from anabranch._record import recorded_callable
from anabranch._record.state.walk import Walk

RUNS = []  # of steps' Python


@pytest.fixture(autouse=True, name="tape")
def on_tape(monkeypatch):
    run_users = recorded_callable.run_users

    def counted(call, *args, **kwargs):
        RUNS.append(call)
        return run_users(call, *args, **kwargs)

    monkeypatch.setattr(recorded_callable, "run_users", counted)
    return OnTape(monkeypatch, is_plentiful=False)


def batches(count, size=4):
    return [torch.full((size,), float(i + 1)) for i in range(count)]


def generated(items):
    yield from items


def loaded(items):
    return iter(DataLoader(torch.stack(items), batch_size=None))


class Counting:
    """As loops over data that lie on the GPU: it begins anew at the end, and counts."""

    def __init__(self, items):
        self.items, self.given, self.rest = items, 0, iter(())

    def __next__(self):
        item = next(self.rest, None)
        if item is None:
            self.rest = iter(self.items)
            item = next(self.rest)
        self.given += 1
        return item


class Scene:
    """A step in an eager and in a recorded copy, each with iterators of its own."""

    def __init__(self, make, **options):
        self.eager, self.recorded = make(), make()
        self.step = anabranch.record(self.recorded.step, **options)

    def call(self, *args):
        """Whether it was launched; both copies answer the same, or raise it."""
        expected, before = outcome(self.eager.step, *args), len(RUNS)
        found = outcome(self.step, *args)
        assert same(expected, found), (expected, found)
        return len(RUNS) == before

    def calls(self, count, *args):
        return [self.call(*args) for _ in range(count)]


def outcome(step, *args):
    try:
        return step(*args)
    except Exception as error:
        return error


def same(one, other):
    if isinstance(one, Exception):
        return type(one) is type(other) and one.args == other.args
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    return one == other


class Program:
    """With a weight, and whatever iterators."""

    def __init__(self, **iterators):
        self.weight = torch.full((4,), 2.0)
        vars(self).update(iterators)


class Plain(Program):
    def step(self):
        return next(self.it) * self.weight


@pytest.mark.parametrize("make", [generated, iter, loaded, Counting])
def test_a_launch_takes_the_next_item(make):
    scene = Scene(lambda: Plain(it=make(batches(12))))
    assert scene.calls(10)[3:] == [True] * 7
    assert same(next(scene.eager.it), next(scene.recorded.it))
    if make is Counting:
        assert scene.recorded.it.given == scene.eager.it.given == 11


@pytest.mark.parametrize("make", [generated, iter, loaded])
def test_the_end_comes_as_in_eager_and_another_iterator_is_launched(make):
    scene = Scene(lambda: Plain(it=make(batches(6))))
    assert scene.calls(8)[3:] == [True] * 3 + [False] * 2
    scene.eager.it, scene.recorded.it = make(batches(4)), make(batches(4))
    assert scene.calls(5) == [True] * 4 + [False]
    assert [report.code for report in scene.step.reports] == [None, None]


def test_iterators_of_variables_globals_and_containers_are_taken_from():
    it, table = iter(batches(9)), {"all": [iter(batches(9))]}

    @anabranch.record
    def step():
        return next(it) + next(table["all"][0])

    for i in range(9):
        before = len(RUNS)
        assert torch.equal(step(), torch.full((4,), 2.0 * (i + 1)))
    assert len(RUNS) == before and next(it, None) is None is next(table["all"][0], None)


class Two(Program):
    def step(self):
        x = next(self.it)
        return x * self.weight + next(self.other)


def test_two_iterators_are_taken_from_in_order():
    scene = Scene(lambda: Two(it=generated(batches(9)), other=iter(batches(7))))
    assert scene.calls(7)[4:] == [True] * 3
    assert scene.call() is False  # `other` has ended, and `it` has given one
    assert same(next(scene.eager.it), next(scene.recorded.it))


class Twice(Program):
    def step(self):
        first, second = next(self.it), next(self.it)
        return first * self.weight - second


def test_one_iterator_is_taken_from_twice():
    scene = Scene(lambda: Twice(it=generated(batches(17))))
    assert scene.calls(8)[4:] == [True] * 4
    assert scene.call() is False
    assert next(scene.recorded.it, None) is None


class Default(Program):
    def step(self):
        x = next(self.it, None)
        return self.weight * (3 if x is None else x)


def test_a_default_is_what_the_step_says():
    scene = Scene(lambda: Default(it=iter(batches(6))))
    assert scene.calls(6)[3:] == [True] * 3
    assert scene.calls(4)[3:] == [True]  # of a step without an item


def test_what_an_iterator_raises_comes_through():
    def failing(items):
        yield from items
        raise ValueError("no more data")

    scene = Scene(lambda: Plain(it=failing(batches(5))))
    assert scene.calls(7) == [False] * 3 + [True] * 2 + [False] * 2
    scene.eager.it, scene.recorded.it = iter(batches(2)), iter(batches(2))
    assert scene.calls(2) == [True, True]


class Catching(Program):
    def step(self):
        try:
            x = next(self.it)
        except StopIteration:
            return self.weight * 0
        return x * self.weight


def test_a_step_may_catch_the_end():
    scene = Scene(lambda: Catching(it=iter(batches(5))))
    assert scene.calls(7)[3:5] == [True] * 2


def test_items_of_another_shape_in_the_middle():
    items = [*batches(5), torch.ones(1), *batches(3)]
    scene = Scene(lambda: Plain(it=iter(items)))
    assert scene.calls(9)[3:] == [True] * 2 + [False] + [True] * 3


class Dictionaries(Program):
    def step(self):
        item = next(self.it)
        return item["x"] * self.weight + item["bias"], item["bias"]


def test_plain_values_of_items_tell_signatures_apart():
    items = [{"x": x, "bias": i // 6} for i, x in enumerate(batches(12))]
    scene = Scene(lambda: Dictionaries(it=generated(items)))
    assert scene.calls(12) == [False] * 3 + [True] * 3 + [False] * 2 + [True] * 4


class Deciding(Program):
    def step(self):
        kind = next(self.kinds)
        return next(self.it) * self.weight if kind == "one" else next(self.other) - self.weight


def test_what_is_taken_may_depend_on_what_was_taken():
    kinds = ["one", "two"] * 10
    scene = Scene(lambda: Deciding(kinds=iter(kinds), it=iter(batches(10)),
                                         other=generated(batches(10))))
    assert scene.calls(20)[8:] == [True] * 12


class Flagged(Program):
    def step(self):
        return next(self.it) * self.weight if self.is_on else self.weight * 3


def test_nothing_is_taken_in_a_call_whose_step_takes_nothing():
    scene = Scene(lambda: Flagged(it=iter(batches(9)), is_on=True))
    scene.calls(5)
    scene.eager.is_on = scene.recorded.is_on = False
    assert scene.calls(4)[2:] == [True] * 2
    scene.eager.is_on = scene.recorded.is_on = True
    assert scene.call() and same(next(scene.eager.it), next(scene.recorded.it))


def test_an_iterator_may_be_taken_from_outside_between_calls():
    scene = Scene(lambda: Plain(it=generated(batches(20))))
    launched = []
    for _ in range(8):
        launched.append(scene.call())
        assert same(next(scene.eager.it), next(scene.recorded.it))
    assert launched[3:] == [True] * 5


class Own(Program):
    def step(self):
        it = iter(self.items)
        next(it)
        return next(it) * self.weight


def test_an_iterator_that_the_step_makes_is_no_argument():
    scene = Scene(lambda: Own(items=batches(3)))
    assert scene.calls(5)[2:] == [True] * 3


def test_an_iterator_may_be_an_argument():
    weight = torch.full((4,), 2.0)
    step = anabranch.record(lambda it: next(it) * weight)
    launched = []
    for make in [generated] * 4:
        it, expected = make(batches(4)), make(batches(4))
        for _ in range(4):
            before = len(RUNS)
            assert torch.equal(step(it), next(expected) * weight)
            launched.append(len(RUNS) == before)
        with pytest.raises(StopIteration):
            step(it)
    assert launched[3:8] == [True] * 5 and launched[11:] == [True] * 5


class Trained(Program):
    def __init__(self):
        super().__init__(it=loaded(batches(16)))
        torch.manual_seed(3)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)

    def step(self):
        loss = self.model(next(self.it)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def test_a_step_that_trains_asks_for_its_batch():
    scene = Scene(Trained)
    assert scene.calls(10)[4:] == [True] * 6
    assert torch.equal(scene.eager.model.weight, scene.recorded.model.weight)


# Where an iterator's code could tell when it runs, nothing is taken before the step.


class Scheduled(Program):
    level = 0

    def __init__(self):
        super().__init__()
        self.it = self.items()

    def items(self):
        while True:
            yield torch.full((4,), float(self.level))

    def step(self):
        self.level += 1
        return next(self.it) * self.weight


class Answered(Program):
    def __init__(self):
        super().__init__(action=torch.zeros(4))
        self.it = self.items()

    def items(self):
        while True:
            yield self.action + 1

    def step(self):
        with torch.no_grad():
            self.action.add_(self.weight)
        return next(self.it) * 2


class Buffered(Program):
    def __init__(self):
        super().__init__(buffer=torch.zeros(4))
        self.it = self.items()

    def items(self):
        for i in itertools.count():
            self.buffer.fill_(i)
            yield self.buffer

    def step(self):
        before = self.buffer * self.weight
        return before, next(self.it) + 0


class Looked(Program):
    def __init__(self):
        super().__init__(it=Counting(batches(9)))

    def step(self):
        before = self.it.given
        return next(self.it) * self.weight + before, self.it.given


class Random(Program):
    def __init__(self):
        super().__init__()
        self.it = self.items()

    def items(self):
        while True:
            yield torch.full((4,), torch.rand([]).item())

    def step(self):
        torch.manual_seed(3)
        return next(self.it) * self.weight


class Filled(Program):
    def __init__(self):
        super().__init__(items=[])
        self.it = iter(self.items)

    def step(self):
        self.items.append(self.weight)
        return next(self.it) * 2


@pytest.mark.parametrize("make", [Scheduled, Answered, Buffered, Looked, Random, Filled])
@pytest.mark.filterwarnings("ignore::anabranch.RecordWarning")
def test_what_an_iterators_code_could_see_runs_plainly(make):
    scene = Scene(make)
    assert not any(scene.calls(8))


class Batch:
    def __init__(self, x):
        self.x = x


class Objects(Program):
    def step(self):
        return next(self.it).x * self.weight


def test_objects_are_no_arguments_and_the_step_says_so():
    with pytest.warns(anabranch.RecordWarning, match=r"(?s)takes from an iterator .*E0341"):
        scene = Scene(lambda: Objects(it=iter(list(map(Batch, batches(9))))))
        assert not any(scene.calls(6))


def test_an_end_that_was_met_ends_no_other_iterator():
    scene = Scene(lambda: Default(it=iter(())))
    assert scene.calls(5)[3:] == [True] * 2
    scene.eager.it, scene.recorded.it = iter(batches(4)), iter(batches(4))
    assert scene.calls(6) == [False] * 2 + [True] * 4


class Shared(Program):
    def __init__(self):
        it = iter(batches(20))
        super().__init__(it=it, table={"it": it})

    def step(self):
        return next(self.table["it"]) * self.weight


def test_an_iterator_in_two_places_is_that_of_the_place_where_the_step_looks():
    scene = Scene(Shared)
    assert scene.calls(6)[3:] == [True] * 3
    scene.eager.table["it"], scene.recorded.table["it"] = iter(batches(9)), iter(batches(9))
    assert scene.calls(5)[3:] == [True] * 2
    scene.eager.it, scene.recorded.it = iter(batches(9)), iter(batches(9))
    assert scene.calls(2) == [True] * 2


class LooksLater(Program):
    def __init__(self):
        super().__init__(it=Counting(batches(9)), looks=False)

    def step(self):
        return self.looked() if self.looks else next(self.it) * self.weight

    def looked(self):
        return self.weight * self.it.given


@pytest.mark.filterwarnings("ignore::anabranch.RecordWarning")
def test_where_a_step_looks_at_what_its_iterator_counts_it_runs():
    scene = Scene(LooksLater)
    assert scene.calls(6)[3:] == [True] * 3
    scene.eager.looks = scene.recorded.looks = True
    for _ in range(5):
        assert not scene.call()
        next(scene.eager.it), next(scene.recorded.it)


class Rated(Program):
    def step(self):
        return next(self.it) * next(self.rates)


def test_floats_that_are_taken_are_followed():
    scene = Scene(lambda: Rated(it=iter(batches(40)), rates=(0.5 + i for i in range(40))))
    assert sum(scene.calls(40)) >= 20


helpers = types.ModuleType("helpers_of_draws")
helpers.__file__ = __file__
exec("def taken(it): return next(it)", vars(helpers))


class Helped(Program):
    def step(self):
        return helpers.taken(self.it) * self.weight


def test_functions_of_other_modules_may_take():
    scene = Scene(lambda: Helped(it=generated(batches(9))))
    assert scene.calls(9)[4:] == [True] * 5
    assert "next" not in vars(helpers)


class Compiled(Program):
    def __init__(self):
        super().__init__(it=iter(batches(9)))
        self.graphs, self.inner = 0, torch.compile(self.scaled, backend=self.counted)

    def counted(self, graph, inputs):
        self.graphs += 1
        return graph

    def scaled(self, x):
        return x * next(iter((self.weight, x)))

    def step(self):
        return self.inner(next(self.it))


def test_what_is_compiled_in_the_step_is_compiled_once():
    scene = Scene(Compiled)
    assert scene.calls(8)[3:] == [True] * 5
    assert scene.recorded.graphs == scene.eager.graphs == 1


class Given(Program):
    def step(self, batch):
        return next(self.it) * self.weight + batch.x


def test_batches_may_be_given_besides(monkeypatch):
    scene, walks = Scene(lambda: Given(it=generated(batches(20)))), []
    made = Walk.__init__
    monkeypatch.setattr(Walk, "__init__", lambda *of, **more: walks.append(1) or made(*of, **more))
    assert [scene.call(Batch(x)) for x in batches(9)][3:] == [True] * 6
    before = len(walks)
    assert [scene.call(Batch(x)) for x in batches(9)] == [True] * 9
    assert len(walks) - before <= 2 * 9  # of the batches


class InModule(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4,), 2.0))
        self.it = loaded(batches(9))

    @torch.no_grad()
    def step(self):
        return next(self.it) * self.weight


def test_an_attribute_of_a_module_is_taken_from_with_gradients_off():
    scene = Scene(InModule, max_recordings=1)
    assert scene.calls(9)[3:] == [True] * 6


class Nested(Program):
    def __init__(self):
        super().__init__(it=iter(batches(12)))
        self.inner = anabranch.record(self.taken)

    def taken(self):
        return next(self.it) * self.weight

    def step(self):
        return self.inner() + 1


def test_a_recorded_step_inside_another_takes_once():
    scene = Scene(Nested)
    for program in (scene.eager, scene.recorded):
        assert torch.equal(program.inner(), torch.full((4,), 2.0))
    assert scene.calls(9)[4:] == [True] * 5
    assert same(next(scene.eager.it), next(scene.recorded.it))


class Breaking(Program):
    def step(self):
        x = next(self.it)
        if self.weight is None:
            raise RuntimeError("no weight")
        return x * self.weight


def test_a_step_that_raises_has_taken_once():
    scene = Scene(lambda: Breaking(it=iter(batches(12))))
    scene.calls(4)
    kept, scene.eager.weight, scene.recorded.weight = scene.recorded.weight, None, None
    assert not any(scene.calls(3))
    scene.eager.weight = scene.recorded.weight = kept
    scene.call()
    assert scene.call() and same(next(scene.eager.it), next(scene.recorded.it))


def test_an_iterator_that_has_ended_is_let_go_of():
    step = anabranch.record(lambda it: next(it) * 2)
    for _ in range(3):
        it = generated(batches(4))
        kept = weakref.ref(it)
        for _ in range(4):
            step(it)
    step(it := generated(batches(4)))
    gc.collect()
    assert kept() is None


def test_an_iterator_that_was_replaced_is_let_go_of():
    program = Plain(it=generated(batches(9)))
    step, kept = anabranch.record(program.step), weakref.ref(program.it)
    for _ in range(6):
        step()
    program.it = generated(batches(9))
    step()
    gc.collect()
    assert kept() is None


def test_precompile_takes_what_its_calls_take():
    program = Plain(it=iter(batches(9)))
    step = anabranch.record(program.step)
    assert step.precompile().code is None and len(list(program.it)) == 6


def test_threads_take_each_item_once():
    program = Plain(it=iter(batches(64)))
    step = anabranch.record(program.step)
    found = [step()[0].item() for _ in range(4)]

    def run():
        for _ in range(15):
            found.append(step()[0].item())

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for one in [pool.submit(run) for _ in range(4)]:
            one.result()
    assert sorted(found) == [2.0 * (i + 1) for i in range(64)]


def test_outside_of_runs_a_module_has_no_next_of_its_own():
    scene = Scene(lambda: Plain(it=generated(batches(3))))
    scene.calls(5)
    assert "next" not in globals()

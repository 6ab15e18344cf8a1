# SPDX-License-Identifier: Apache-2.0
"""Numbers that note what is computed from them, and how words of kernels follow them."""

from __future__ import annotations

import contextlib
import copy
import math
import operator
import pickle
import random
import struct
import threading

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode

from anabranch._core.capture import Number as Word
from anabranch._record.numbers.formulas import Formulas, OtherRounding, OtherWay, Unexplained
from anabranch._record.numbers.noted import NumberTrace
from anabranch._record.numbers.step_numbers import StepNumbers
from anabranch._record.state.number_places import TupleItems

pytestmark = pytest.mark.oldest


def double(value):
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def single(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


def both(compute, first, other):
    """The traces of two captures, and what each computes."""
    traces = NumberTrace(), NumberTrace()
    found = [compute(*map(trace.number, values))
             for trace, values in zip(traces, (first, other), strict=True)]
    return traces, found


def formulas(compute, first, other, encode=double, size=8):
    """Of words that hold what ``compute`` answers."""
    traces, (mine, theirs) = both(compute, first, other)
    words = [Word(size, encode(a), encode(b)) for a, b in
             zip(mine or (), theirs or (), strict=True)]
    return Formulas(*traces, words)


# ---- noting


def test_arithmetic_is_that_of_floats_and_can_be_done_again_with_other_values():
    def compute(a, b):
        return [1 - a * b, -a / (1 - b ** 3), 2.0 ** a, abs(a - b), +a, a - 1, 3 / b, b + a + 1]

    numbers, left = random.Random(3), 0
    for _ in range(50):
        first, other, later = (
            [numbers.uniform(1, 2), numbers.uniform(0.1, 0.9)] for _ in range(3))
        trace = NumberTrace()
        assert compute(*map(trace.number, first)) == compute(*first)
        made = formulas(compute, first, other)
        try:
            assert made.words(later) == list(map(double, compute(*later)))
        except OtherRounding:
            left += 1
    assert left <= 15  # some value is the same bfloat16 in both


def test_what_a_value_is_looked_at_for_is_noted():
    for look in (int, round, lambda x: x // 2, lambda x: f"{x}", math.floor):
        trace = NumberTrace()
        look(trace.number(0.5))
        assert trace.looked_at == {0}, look
    trace = NumberTrace()
    _ = -trace.number(0.5) * 2
    assert not trace.looked_at


@pytest.mark.parametrize(("decide", "otherwise"), [
    (lambda x: x > 0, -1.0), (lambda x: x >= 0.25, 0.2), (lambda x: x != 0.125, 0.125), (bool, 0.0),
    (lambda x: max(x, 0.0), -1.0), (lambda x: x - 1 < 0, 2.0),
    (lambda x: x < 2, 3.0), (lambda x: x >= 1, 1.5)])
def test_with_values_that_decide_otherwise_the_step_goes_another_way(decide, otherwise):
    made = formulas(lambda x: decide(x) and [], (0.5,), (0.75,))
    assert made.words((0.6,)) == []
    with pytest.raises(OtherWay):
        made.words((otherwise,))


def test_what_becomes_complex_goes_another_way():
    made = formulas(lambda x: [x ** 0.5], (2.0,), (3.0,))
    with pytest.raises(OtherWay):
        made.words((-2.0,))


def test_a_number_that_is_compared_with_what_no_float_is_is_not_followed():
    for integer in (2 ** 53 + 1, 10 ** 400):
        with pytest.raises(Unexplained, match="an integer that is no float"):
            formulas(lambda x, integer=integer: [x] * (x < integer), (0.5,), (0.25,))


def test_a_number_that_is_kept_is_a_float_like_any_other():
    trace = NumberTrace()
    number = trace.number(0.25)
    assert isinstance(number, float) and hash(number) == hash(0.25)
    for other in (copy.copy(number), copy.deepcopy([number])[0], pickle.loads(pickle.dumps(number))):
        assert type(other) is float and other == 0.25
    trace.close()
    assert type(number + 1) is float and number < 1 and f"{number:.1f}" == "0.2"
    assert len(trace.entries) == 1 and not trace.looked_at


# ---- words


def test_words_that_are_computed_are_explained_and_follow_bit_for_bit():
    def compute(a, b):
        return [a, -a, 1 - a * b, a / (1 - b ** 7), 1 - b]

    made = formulas(compute, (0.1, 0.83), (0.23, 0.7))
    narrow = formulas(compute, (0.1, 0.83), (0.23, 0.7), single, 4)
    for a, b in ((0.3, 0.7), (1e-9, 0.999), (5.0, 0.5)):
        assert made.words((a, b)) == list(map(double, compute(a, b)))
        assert narrow.words((a, b)) == list(map(single, compute(a, b)))


def test_a_word_may_hold_two_floats_or_one_beside_something_else():
    trace, other = NumberTrace(), NumberTrace()
    trace.number(0.5), other.number(0.25)
    fixed = single(7.0) << 32
    made = Formulas(trace, other, [
        Word(8, fixed | single(0.5), fixed | single(0.25)),
        Word(8, single(-0.5) << 32 | single(0.5), single(-0.25) << 32 | single(0.25))])
    assert made.words((3.0,)) == [fixed | single(3.0), single(-3.0) << 32 | single(3.0)]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_halves_are_rounded_as_torch_rounds_them(kind):
    def bits(value):
        return torch.tensor(value, dtype=torch.float32).to(kind).view(torch.int16).item() & 0xFFFF

    made = formulas(lambda a: [a], (0.1,), (0.7,), bits, 2)
    for value in (0.3, 1.00390625, 1.01171875, -2.5, 70000.0, -1e30, 1e-8, float("nan")):
        assert made.words((value,)) == [bits(value)], value


def test_what_torch_inverts_or_makes_negative_is_explained():
    inverse = torch.tensor(1.0) / torch.tensor(0.1), torch.tensor(1.0) / torch.tensor(0.7)
    trace, other = NumberTrace(), NumberTrace()
    trace.number(0.1), other.number(0.7)
    made = Formulas(trace, other, [Word(4, single(inverse[0].item()), single(inverse[1].item()))])
    assert made.words((0.3,)) == [single((torch.tensor(1.0) / torch.tensor(0.3)).item())]


@pytest.mark.parametrize(("compute", "why"), [
    (lambda a: [math.sqrt(a)], "another way"),
    (lambda a: [float(a) * 3], "another way"),
    (lambda a: [a * 2, float(int(a * 100))], "an integer"),
    (lambda a: [a * 2] if a < 0.15 else [a * 2 + 1], "something else"),
])
def test_what_cannot_be_followed_is_refused(compute, why):
    with pytest.raises(Unexplained, match=why) as told:
        formulas(compute, (0.1,), (0.2,))
    assert "[E" not in str(told.value)  # it is a clause


def test_what_compilers_leave_between_words_is_left_as_it_was():
    """Pointers, halves of them, small integers, and nothing, as kernels' parameters had them."""
    left = [(0x7FDA, 0), (0x7FFF0BED9100, 0x7FFF0BED9000), (0, 0x7FE850804B20), (0xE0, 0xC0),
            (0xC010D81300000000, 0xC010D81300007FB4), (0x1CBE950000000000, 0x1CBE940000000000),
            (0x3350FAE000000000, 0x800000000), (0xBEDA6000000001A, 0xBEDA6000000001B),
            (0x7FB2D8CAC2B5, 0x7FB2D8CAC52E), (0x59AAC2B500007F5A, 0x59AAC52E00007F5A),
            (0xC06FA50000000000, 0xC06FA40000000000)]
    trace, other = NumberTrace(), NumberTrace()
    trace.number(0.5), other.number(0.25)
    made = Formulas(trace, other, [
        *(Word(8, first, second) for first, second in left),
        Word(8, 0x7FDA << 32 | single(0.5), single(0.25)), Word(1, 7, 9)])
    assert made.words((3.0,)) == [*(first for first, _ in left), 0x7FDA << 32 | single(3.0), 7]


def test_what_was_the_same_in_both_captures_has_to_be_the_same_in_launches():
    made = formulas(lambda a: [a, 1 + a * 1e-20], (1e-3,), (2e-3,))
    assert made.words((3e-3,)) == [double(3e-3), double(1.0)]
    with pytest.raises(OtherRounding):
        made.words((1e6,))
    with pytest.raises(Unexplained, match="the same in both"):
        formulas(lambda a, b: [a + b], (1e-3, 0.5), (2e-3, 0.5))


def test_what_was_rounded_alike_in_both_captures_has_to_be_rounded_alike_in_launches():
    """1 - 1e-9 is 1 as a float, and no word tells whether a kernel is given it."""
    made = formulas(lambda a: [a, 1 - a * 1e-6], (1e-3, ), (2e-3, ), single, 4)
    assert made.words((3e-3,)) == [single(3e-3), single(1.0)]
    with pytest.raises(OtherRounding):
        made.words((0.5,))


def test_where_two_explanations_part_the_step_is_run():
    """Both are the word in both captures, and nothing says which of them it is."""
    made = formulas(lambda a, b: [a], (0.1, 0.1), (0.2, 0.2))
    assert made.words((0.3, 0.3)) == [double(0.3)]
    with pytest.raises(ArithmeticError):
        made.words((0.3, 0.4))
    made = formulas(lambda a: [a + 0.0, a + 1.5e-9][:1], (0.1,), (0.2,), single, 4)
    with pytest.raises(ArithmeticError):  # alike as floats alone
        made.words((1e-9,))


def test_a_word_that_an_operator_cannot_compute_is_the_steps_own_error():
    made = formulas(lambda a: [1 / (a - 1)], (0.1,), (0.2,))
    with pytest.raises(ArithmeticError):
        made.words((1.0,))


def test_the_third_captures_numbers_tell_equal_ones_and_their_inverses_apart():
    def compute(a, b, c):
        return [a, b, 1 - c, a * b]

    numbers, left = random.Random(5), 0
    for _ in range(30):
        rate = numbers.uniform(1e-4, 1e-2)
        trace = NumberTrace()
        compute(*map(trace.number, (rate, rate, 0.5)))
        step = StepNumbers((), (), (rate, rate, 0.5), (0.9 * rate, 0.9 * rate, 0.5)).apart(trace)
        assert all(abs(a - b) > 0.003 * abs(a) for a, b in zip(step.now, step.other, strict=True))
        assert step.other[0] != step.other[1]
        for change in (lambda x: 1 / x, lambda x: 1 / torch.tensor(x).item(), lambda x: -x):
            def word(a, b, c, change=change):
                return [change(float.__float__(b))]

            made = formulas(lambda *all, word=word: (compute(*all), word(*all))[1], step.now,
                            step.other, single, 4)
            for value in (rate * 0.3, rate * 0.77):
                try:
                    assert made.words((1e-3, value, 0.5)) == [single(change(value))]
                except (ArithmeticError, OtherRounding):
                    left += 1
    assert left <= 9  # of 180


def test_a_thousand_numbers_are_told_apart_by_their_third_capture():
    now = tuple(1e-3 + 1e-6 * i for i in range(1000))
    trace = NumberTrace()
    for value in now:
        trace.number(value)
    other = StepNumbers((), (), now, now).apart(trace).other
    made = formulas(lambda *all: list(all), now, other, single, 4)
    later = tuple(value * 0.37 for value in now)
    assert made.words(later) == list(map(single, later))
    assert made.words((1e300, *later[1:]))[0] == single(float("inf"))


def test_numbers_whose_change_leads_another_way_are_not_followed():
    trace = NumberTrace()
    assert trace.number(0.5) == 0.5
    with pytest.raises(Unexplained, match="another way"):
        StepNumbers((), (), (0.5,), (0.5,)).apart(trace)


def test_numbers_are_in_their_places_during_a_capture_and_back_afterwards():
    holder, leaves, trace = {"rate": 0.1}, [None, 2.0], NumberTrace()
    numbers = StepNumbers((1,), ((holder, "rate"),), (2.0, 0.1), (3.0, 0.2), (3.0, 0.2))
    with numbers.noted(leaves, trace, are_other=True):
        assert leaves[1] == 3.0 and holder["rate"] * leaves[1] == 0.2 * 3.0
        kept = holder["rate"]
    assert type(holder["rate"]) is float and holder["rate"] == 0.1
    assert type(kept + 1) is float and len(trace.entries) == 5  # two numbers, two tests, a product
    with numbers.between().standing(leaves):
        assert leaves[1] == 2.5 and type(leaves[1]) is float
        assert holder["rate"] == (0.1 + 0.2) / 2
    assert holder["rate"] == 0.1


def test_compiled_code_that_is_given_a_noted_number_is_not_compiled_anew():
    """It takes a float's type for granted, and would be compiled for each capture."""
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(lambda x, t: x * t + 1, backend=counter)
    x, others = torch.ones(3), []
    for value in (0.5, 0.6):
        compiled(x, value)
    assert counter.frame_count == 2  # for a constant, and for any float
    step, leaves = StepNumbers((0,), (), (0.7,), (0.6,)), [0.7]
    with pytest.raises(Unexplained, match=r"compiled code .* tensor"), \
            step.noted(leaves, NumberTrace(), are_other=False):
        elsewhere = threading.Thread(target=lambda: others.append(compiled(torch.ones(2, 2), 0.7)))
        elsewhere.start()
        elsewhere.join()
        compiled(x, leaves[0])
    assert len(others) == 1 and counter.frame_count == 3  # that of the other thread
    assert torch.equal(compiled(x, 0.8), x * 0.8 + 1)


def test_a_number_that_the_step_changes_itself_is_not_followed():
    """A launch would not change it."""
    holder = {"rate": 0.1}
    numbers = StepNumbers((), ((holder, "rate"),), (0.1,), (0.2,), (0.2,))
    for around in (numbers.noted([], NumberTrace(), are_other=False), numbers.standing([])):
        with pytest.raises(Unexplained, match="changes it itself"), around:
            holder["rate"] *= 0.9
        assert holder["rate"] == 0.1
    with pytest.raises(ZeroDivisionError), numbers.standing([]):
        holder["rate"] = 1 / 0


# ---- torch's optimizers


class Words(TorchDispatchMode):
    """All Python floats that operators are given, in order."""

    def __init__(self):
        super().__init__()
        self.words = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._walk([*args, *(kwargs or {}).values()])
        return func(*args, **(kwargs or {}))

    def _walk(self, thing):
        if isinstance(thing, (list, tuple)):
            for part in thing:
                self._walk(part)
        elif isinstance(thing, float):
            self.words.append(float.__float__(thing))


OPTIMIZERS = {
    "SGD": lambda p, **how: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, **how),
    "AdamW": lambda p, **how: torch.optim.AdamW(p, 0.1, **how),
    "Adagrad": lambda p, **how: torch.optim.Adagrad(p, 0.1, lr_decay=0.1, **how),
    "NAdam": lambda p, **how: torch.optim.NAdam(p, 0.1, **how),
    "RAdam": lambda p, **how: torch.optim.RAdam(p, 0.1, **how),
    "RMSprop": lambda p, **how: torch.optim.RMSprop(p, 0.1, **how),
}


def step_words(make, how, values):
    """What a step's operators are given where the rate and the decay have these values."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(4)) for _ in range(2)]
    optimizer = make(parameters, **how)
    [group] = optimizer.param_groups
    for key, value in values.items():
        group[key] = value
    for parameter in parameters:
        parameter.grad = torch.randn(4)
    with Words() as seen:
        optimizer.step()
    return seen.words


@pytest.mark.parametrize("how", [{"foreach": False}, {"foreach": True}], ids=["single", "foreach"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_an_optimizer_computes_from_its_rate_is_followed_bit_for_bit(name, how):
    make, traces = OPTIMIZERS[name], (NumberTrace(), NumberTrace())
    found = [step_words(make, how, {"lr": trace.number(lr)})
             for trace, lr in zip(traces, (0.1, 0.0372), strict=True)]
    plain = step_words(make, how, {"lr": 0.1})
    assert found[0] == plain
    moved = [i for i, (a, b) in enumerate(zip(*found, strict=True)) if a != b]
    assert moved
    made = Formulas(*traces, [Word(8, double(found[0][i]), double(found[1][i])) for i in moved])
    for lr in (0.15, 1e-4, 0.123456789):
        wanted = step_words(make, how, {"lr": lr})
        assert made.words((lr,)) == [double(wanted[i]) for i in moved]
    assert operator.eq(*map(len, found))


def test_where_one_number_cannot_be_set_the_others_stand_as_they_did():
    class Fixed(dict):
        def __setitem__(self, key, value):
            raise TypeError("it is fixed")

    betas = (0.9, 0.99)
    group = {"lr": 0.1, "betas": betas}
    places = ((group, "lr"), (TupleItems(group, "betas"), 0), (TupleItems(group, "betas"), 1))
    for holders in (places, (*places, (Fixed(x=1.0), "x"))):
        values = tuple(float(holder[key]) for holder, key in holders)
        numbers = StepNumbers((), holders, values, values)
        with contextlib.suppress(TypeError), numbers.noted([], NumberTrace(), are_other=False):
            assert type(group["betas"][1]) is not float
        assert type(group["lr"]) is float and group["lr"] == 0.1
        assert group["betas"] is betas

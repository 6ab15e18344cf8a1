# SPDX-License-Identifier: Apache-2.0
"""Checks hold or they do not, by the compiled module and by Python alike."""

from __future__ import annotations

import collections
import gc
import random
import struct
import weakref
from types import CellType, SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from anabranch import _compat
from anabranch._record import quick
from anabranch._record.checks import (
    FIRST_FREE,
    MISSED,
    At,
    CallPlan,
    Check,
    Kind,
    Launched,
    PlanInPython,
    answers,
    call,
    item,
    modes,
    packed,
)
from anabranch._record.signatures.call_shape import likeness_to

pytestmark = pytest.mark.oldest
WAYS = {"compiled": CallPlan, "python": PlanInPython}
FIRST = [None] * FIRST_FREE


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


@pytest.fixture(params=["watched", "versions", "no versions"])
def versions(request):
    """Whether the compiled module goes by the versions of dictionaries, or watches them."""
    by_versions = request.param != "no versions" and quick.tells_versions
    is_watched = request.param == "watched" and quick.watches
    quick.module.learn_versions(by_versions)
    quick.module.learn_watcher(is_watched)
    yield by_versions or is_watched
    quick.module.learn_versions(quick.tells_versions)
    quick.module.learn_watcher(quick.watches)


class Holder:
    """One that Python looks up itself."""

    def __init__(self, **things):
        self.things = things

    def __getitem__(self, key):
        return self.things[key]


class Named:
    scale = [1]


class Slots:
    __slots__ = ("thing",)


def test_the_very_same_things_stand_there_or_they_do_not(way, versions):
    a, b, equal = [1], [2], [1]
    plain, listed, own, cell = {"a": a, "b": b}, [a, b], Holder(b=b), CellType(a)
    ordered, before, slotted = collections.OrderedDict(a=a), Named.scale, Slots()
    slotted.thing = a
    checks = [*(item(holder, key, Kind.IS, thing) for holder, key, thing in (
                  (plain, "a", a), (plain, "b", b), (listed, 1, b), (own, "b", b),
                  (ordered, "a", a), (vars(Named), "scale", before), (listed, 0, a))),
              Check(Kind.IS, At.CELL, cell, None, a),
              Check(Kind.IS, At.ATTRIBUTE, slotted, "thing", a)]
    plan = way(checks, Launched(FIRST))
    assert plan.holds() and plan.holds() and way([], Launched(FIRST)).holds()
    for change, back in (
            (lambda: plain.update(a=equal), lambda: plain.update(a=a)),
            (lambda: plain.pop("b"), lambda: plain.update(b=b)),
            (lambda: listed.reverse(), lambda: listed.reverse()),
            (lambda: listed.pop(), lambda: listed.append(b)),
            (lambda: own.things.clear(), lambda: own.things.update(b=b)),
            (lambda: ordered.update(a=b), lambda: ordered.update(a=a)),
            (lambda: setattr(cell, "cell_contents", b), lambda: setattr(cell, "cell_contents", a)),
            (lambda: delattr(cell, "cell_contents"), lambda: setattr(cell, "cell_contents", a)),
            (lambda: delattr(slotted, "thing"), lambda: setattr(slotted, "thing", a)),
            (lambda: setattr(Named, "scale", equal), lambda: setattr(Named, "scale", before))):
        change()
        assert not plan.holds() and not plan.holds() and plan.missed() is not None
        back()
        assert plan.holds() and plan.holds()
    plain["more"] = listed[:]  # which nobody asks for
    assert plan.holds()


@pytest.mark.parametrize("seed", range(20))
def test_switches_that_are_back_hold_and_those_that_only_seem_so_do_not(versions, seed):
    """In many dictionaries at once, by several plans in turn, with other changes among them."""
    chosen = random.Random(seed)
    holders = [{"on": chosen.random() < 0.5, "off": False, "kept": [i], "count": i}
               for i in range(40)]
    names = ("on", "off", "kept", "count", "".join(["o", "n"]))

    def plan():
        return CallPlan([item(holder, key, Kind.EQUALS, value) for holder in holders
                         for key, value in holder.items()], Launched(FIRST))

    plans = []
    for _ in range(3):
        for holder in chosen.sample(holders, 30):
            name = chosen.choice(("on", "off"))
            holder[name] = not holder[name]
        plans.append((plan(), [dict(holder) for holder in holders]))
    for _ in range(200):
        made, wanted = chosen.choice(plans)
        for holder, before in zip(holders, wanted, strict=True):
            for name in names if chosen.random() < 0.9 else names[:1]:
                holder[name] = before[name]
        if chosen.random() < 0.4:
            holder, name = chosen.choice(holders), chosen.choice(names)
            now = holder[name]
            holder[name] = chosen.choice((not now if type(now) is bool else [], 1, 0, True, None))
        if chosen.random() < 0.2:  # two of one dictionary, or of two
            for holder, name in zip(chosen.choices(holders[:2], k=2), ("on", "off"), strict=True):
                holder[name] = not holder[name]
        if chosen.random() < 0.2:  # keys that lie where others lay
            holder[f"more {chosen.randrange(5)}"] = chosen.random() < 0.5
        is_so = all(type(holder[name]) is type(before[name]) and holder[name] == before[name]
                    for holder, before in zip(holders, wanted, strict=True)
                    for name in before)
        assert bool(made.holds()) == is_so


def test_what_is_raised_is_a_no_unless_it_ends_the_program(way):
    class Raising:
        def __getitem__(self, key):
            raise key

    def failing():
        raise OverflowError

    def of(check):
        return way([check], Launched(FIRST))

    assert not of(item(Raising(), OverflowError(), Kind.ANY)).holds()
    assert not of(answers(failing, (), None, "it fails")).holds()
    with pytest.raises(KeyboardInterrupt):
        of(item(Raising(), KeyboardInterrupt(), Kind.ANY)).holds()


def test_what_has_not_changed_is_not_looked_through_again(versions):
    looks = []

    class Key:
        def __init__(self, change=lambda: None):
            self.change = change

        def __hash__(self):
            return 7

        def __eq__(self, other):
            looks.append(other)
            self.change()
            return False

    thing, first, key = [1], Key(), Key()
    holder = {first: None, key: thing}  # of one hash, so that the first is looked at
    plan = CallPlan([item(holder, key, Kind.IS, thing)], Launched(FIRST))

    def looks_of_next():
        looks.clear()
        assert plan.holds()
        return len(looks)

    looks_of_next(), looks_of_next()  # the second one begins to watch
    holder["more"] = None
    assert looks_of_next() == 1 and looks_of_next() == (0 if versions else 1)
    holder["more"] = thing
    assert looks_of_next() == 1
    # It changes while it is looked at: what has been seen then may not be so any more.
    first.change = lambda: holder.update(more=len(looks))
    holder["more"] = None
    assert looks_of_next() == looks_of_next() == 1


@pytest.mark.parametrize("is_often", [True, False])
def test_a_dictionary_that_changes_again_and_again_is_seen_to_change(is_often, versions):
    """By all plans, though one of them has given it up; also one that comes where one was."""
    thing, other = [1], [2]
    for _ in range(3):
        holder, still = {"a": thing, "n": 0}, {"b": thing}
        checks = [item(holder, "a", Kind.IS, thing), item(still, "b", Kind.IS, thing)]
        plans = [CallPlan(checks, Launched(FIRST)) for _ in range(2)]
        for i in range(20):
            assert all(plan.holds() for plan in plans)
            if is_often or i % 7 == 0:
                holder["n"] = i
            for there in (holder, still):
                name = next(iter(there))
                there[name] = other
                assert not any(plan.holds() for plan in plans[i % 2:])
                there[name] = thing
            for _ in range(1 if is_often else 40):
                assert all(plan.holds() for plan in plans)


def test_what_a_plan_names_lives_as_long_as_the_plan(way):
    """And no longer, where the two are of one cycle."""
    one = {"x": Holder()}
    one["itself"] = way([item(one, "x", Kind.IS, one["x"])], Launched(FIRST))
    seen = weakref.ref(one["x"])
    gc.collect()
    assert one["itself"].holds()
    del one
    gc.collect()
    assert seen() is None


VALUES = [0, 1, 1.0, True, 0.0, -0.0, "a", "b", None, (1, 2), (1, 2.0), (1, (2, "a")), b"a",
          torch.float32, torch.Size([1, 2]), torch.device("cuda:1"), 1j, frozenset([1])]


def test_values_are_equal_only_where_they_are_of_one_type(way):
    same = {(0.0, -0.0)}
    for one in VALUES:
        holder = {"a": one}
        plan = way([item(holder, "a", Kind.EQUALS, one)], Launched(FIRST))
        for other in VALUES:
            holder["a"] = other
            is_equal = type(one) is type(other) and one == other and (
                type(one) is not tuple or repr(one) == repr(other))
            assert plan.holds() == is_equal, (one, other, same)


def test_containers_have_the_same_keys_and_lengths_or_they_do_not(way):
    holder, values = {"x": 1, "y": 2}, ([1], [2])
    mapping = collections.defaultdict(list, {"z": values[0], 3: values[1]})
    plan = way([Check(Kind.KEYS, At.ITSELF, holder, None, ("x", "y")),
                Check(Kind.LENGTH, At.ITSELF, holder, None, 2),
                Check(Kind.VALUES, At.ITSELF, mapping, None, values)], Launched(FIRST))
    assert plan.holds()
    holder["x"] = 5
    assert plan.holds()
    holder["x"] = holder.pop("x")  # in another order
    assert not plan.holds()
    holder["y"] = holder.pop("y")
    assert plan.holds()
    holder["z"] = 3
    assert not plan.holds()
    del holder["z"]
    assert plan.holds()
    mapping["z"] = [1]
    assert not plan.holds()
    mapping["z"] = values[0]
    assert plan.holds()
    del mapping["z"]
    assert not plan.holds()


def test_torch_is_in_the_modes_in_which_it_was(way):
    for told in (quick.modes_told(), _compat.modes()):
        plan = way([modes(quick.modes_told())], Launched(FIRST))
        assert plan.holds() and told
        with torch.no_grad():
            assert not plan.holds()
        assert plan.holds()


def launched(*checks, way, registers, given=(), numbers=0, **how):
    """What a plan of these answers is what it is given, or its numbers."""
    def otherwise(code, args, kwargs, some, owners, words):
        return some, list(words)

    kept = [*FIRST, *registers]
    return way(list(checks), Launched(
        kept, packed(given), numbers=numbers, otherwise=otherwise, calls=bytearray(8),
        words_of=(lambda told: struct.unpack(f"{numbers}d", told)) if numbers else None, **how))


def call_of(plan, *args, **kwargs):
    return plan.call(args, kwargs, None) if isinstance(plan, PlanInPython) \
        else call([plan], args, kwargs, None)


def test_a_tensor_may_be_another_one_that_is_like_it_wherever_it_stands(way, versions):
    first, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(2))
    one, two = {"w": first}, [first]
    plan = launched(item(one, "w", Kind.LIKE, likeness_to(first), to=3),
                    item(two, 0, Kind.LIKE, likeness_to(first), to=3),
                    way=way, registers=[first], given=[3])
    assert call_of(plan)[0][0] is first
    one["w"] = other
    assert call_of(plan) is MISSED  # it stood in two places, and now two do
    two[0] = other
    assert call_of(plan)[0][0] is other and call_of(plan)[0][0] is other
    two[0] = first
    assert call_of(plan) is MISSED
    one["w"] = first
    assert call_of(plan)[0][0] is first
    for unlike in (nn.Parameter(torch.ones(3)), torch.ones(2), torch.ones(2, requires_grad=True),
                   nn.Parameter(torch.ones(2), requires_grad=False), None,
                   nn.Parameter(torch.ones(2, dtype=torch.float64)),
                   nn.Parameter(torch.ones(4))[::2]):
        one["w"] = two[0] = unlike
        assert call_of(plan) is MISSED, unlike
    gone = weakref.ref(other)
    del other
    one["w"] = two[0] = nn.Parameter(torch.ones(2))
    assert call_of(plan)[0][0] is one["w"]
    gc.collect()
    assert gone() is None  # what has been replaced is let go of


def test_a_tensor_that_stands_elsewhere_is_not_like_another(way, versions):
    first, second, third = (nn.Parameter(torch.ones(2)) for _ in range(3))
    one, two = {"w": first}, [second]
    plan = launched(item(one, "w", Kind.LIKE, likeness_to(first), to=3),
                    item(two, 0, Kind.LIKE, likeness_to(second), to=4),
                    way=way, registers=[first, second], given=[3, 4])
    two[0] = first
    assert call_of(plan) is MISSED
    one["w"] = third
    given = call_of(plan)[0]
    assert given[0] is third and given[1] is first
    two[0] = third
    assert call_of(plan) is MISSED
    one["w"], two[0] = second, third
    given = call_of(plan)[0]
    assert given[0] is second and given[1] is third


def test_numbers_and_tensors_of_arguments_are_found_in_each_call(way):
    like = _compat.likeness_of([torch.ones(2)])
    plan = launched(Check(Kind.LENGTH, At.ITSELF, None, None, 2, 0),
                    Check(Kind.TYPE, At.ITEM, None, 0, Tensor, 0, 3),
                    Check(Kind.FLOAT, At.ITEM, None, 1, None, 0, 0),
                    Check(Kind.ALIKE, At.ITSELF, like, packed([3]), None),
                    Check(Kind.GRADIENTS, At.ITSELF, None, packed([3]), b"\2"),
                    way=way, registers=[None], given=[3], numbers=1)
    for i in range(3):
        x = torch.ones(2)
        assert call_of(plan, x, float(i)) == ([x], [float(i)])
    assert call_of(plan, x, -0.0)[1] == [0.0] and call_of(plan, x, float("nan"))[1] != [0.0]
    gone = weakref.ref(x)
    del x
    assert gone() is None
    for args in ((torch.ones(3), 1.0), (torch.ones(2),), (torch.ones(2), 1), (None, 1.0),
                 (torch.ones(2, requires_grad=True), 1.0), (nn.Parameter(torch.ones(2)), 1.0)):
        assert call_of(plan, *args) is MISSED, args


def test_the_plan_that_serves_a_call_is_tried_first_in_the_next_one():
    plans = [launched(Check(Kind.EQUALS, At.ITEM, None, 0, i, 0), way=CallPlan, registers=[i],
                      given=[3]) for i in range(3)]
    first, second, third = plans
    assert call(plans, (2,), {}, None) == ([2], []) and plans == [third, first, second]
    assert call(plans, (0,), {}, None) == ([0], []) and plans == [first, third, second]
    assert call(plans, (7,), {}, None) is MISSED and plans == [first, third, second]
    assert call([], (0,), {}, None) is MISSED and second.missed() == ""


@pytest.mark.parametrize("wrong", [
    (Check(Kind.IS, At.ITSELF, None, None, None, 7),), (Check(Kind.TYPE, At.ITEM, {}, 0, int, -1, 9),),
    (Check(Kind.GRADIENTS, At.ITSELF, None, packed([9]), b"1"),),
    (Check(Kind.GRADIENTS, At.ITSELF, None, packed([0]), b"12"),),
    (Check(Kind.FLOAT, At.ITEM, {}, 0, None, -1, 0),), (Check(Kind.MODES, At.ITSELF, 1, 1, 1),),
    (Check(Kind.ANSWERS, At.ITSELF, len, 3, 3),), ((1, 2),), (None,)], ids=str)
def test_what_is_no_plan_is_not_made(wrong):
    with pytest.raises((TypeError, AttributeError)):
        quick.module.CallPlan(list(wrong), Launched(FIRST))
    with pytest.raises((TypeError, AttributeError)):
        quick.module.CallPlan([], SimpleNamespace(kept=FIRST))
    with pytest.raises(TypeError, match="no plan"):
        quick.module.CallPlan([], Launched(FIRST, given=packed([3])))


class Random:
    """Holders of all kinds with checks of what is in them, and changes of that."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.things = [*VALUES, *(nn.Parameter(torch.ones(i)) for i in (2, 2, 3)),
                       torch.ones(2), [1], {"a": 1}, Named, len]
        self.holders = [self.filled(kind) for kind in (dict, list, Holder, collections.OrderedDict,
                                                       CellType, dict, dict)]
        self.checks, self.kept = [], list(FIRST)
        for _ in range(self.random.randrange(1, 12)):
            self.add_check()

    def pick(self):
        return self.random.choice(self.things)

    def filled(self, kind):
        named = {name: self.pick() for name in "abc"}
        return [self.pick() for _ in range(3)] if kind is list else CellType(self.pick()) \
            if kind is CellType else Holder(**named) if kind is Holder else kind(named)

    def place(self):
        holder = self.random.choice(self.holders)
        key = self.random.randrange(3) if isinstance(holder, list) else self.random.choice("abc")
        return holder, key

    def add_check(self):
        holder, key = self.place()
        if isinstance(holder, CellType):
            self.checks.append(Check(Kind.IS, At.CELL, holder, None, holder.cell_contents))
            return
        thing = holder[key]
        kinds = [(Kind.IS, thing), (Kind.TYPE, type(thing))]
        if any(thing is value for value in VALUES):
            kinds.append((Kind.EQUALS, thing))
        if isinstance(thing, Tensor):
            known = [i for i, kept in enumerate(self.kept) if kept is thing]
            if not known:
                self.kept.append(thing)
            self.checks.append(item(holder, key, Kind.LIKE, likeness_to(thing),
                                    to=known[0] if known else len(self.kept) - 1))
            return
        kind, expected = self.random.choice(kinds)
        self.checks.append(item(holder, key, kind, expected))
        if isinstance(holder, dict):
            self.checks.append(Check(*self.random.choice((
                (Kind.LENGTH, At.ITSELF, holder, None, len(holder)),
                (Kind.KEYS, At.ITSELF, holder, None, tuple(holder)),
                (Kind.VALUES, At.ITSELF, holder, None, tuple(holder.values()))))))

    def change(self):
        holder, key = self.place()
        if isinstance(holder, CellType):
            holder.cell_contents = self.pick()
        elif isinstance(holder, Holder):
            holder.things[key] = self.pick()
        elif isinstance(holder, list) or self.random.random() < 0.7:
            holder[key] = self.pick()
        else:
            holder.pop(key, None)


@pytest.mark.parametrize("seed", range(40))
def test_python_and_the_compiled_module_answer_the_same(seed, versions):
    """Whatever has changed, and changed back."""
    made = Random(seed)
    given = range(FIRST_FREE, len(made.kept))
    plans = [launched(*made.checks, way=way, registers=made.kept[FIRST_FREE:], given=given)
             for way in WAYS.values()]
    seen = set()
    for _ in range(150):
        answer, other = (call_of(plan) for plan in plans)
        assert (answer is MISSED) == (other is MISSED)
        if answer is not MISSED:
            assert list(map(id, answer[0])) == list(map(id, other[0]))
        seen.add(answer is MISSED)
        before = [(holder, dict(holder)) for holder in made.holders if isinstance(holder, dict)]
        made.change()
        if made.random.random() < 0.5:  # mostly all is as it was again
            for holder, items in before:
                holder.clear()
                holder.update(items)
    assert seen

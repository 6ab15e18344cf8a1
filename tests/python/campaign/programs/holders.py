# SPDX-License-Identifier: Apache-2.0
"""Steps that read numbers, texts and switches out of everything that can hold them."""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import enum
import functools
import operator
import threading
import types
import weakref
from types import SimpleNamespace

import torch
from common import batches, numbers


class Kind(enum.Enum):
    SUM = 1
    MEAN = 2


@dataclasses.dataclass(frozen=True)
class Frozen:
    rate: float = 0.5
    kind: str = "sum"


class Config:
    def __init__(self):
        self.scale, self.times, self.is_on, self.how = 1.5, 2, True, "sum"
        self.shift, self.kind, self.pair, self.frozen = None, Kind.SUM, (0.5, 3), Frozen()


def reduced(x, how):
    return x.sum(0) if how == "sum" else x.mean(0)


def attributes():
    config = Config()

    def step(x):
        y = x * config.scale + config.times
        if config.is_on:
            y = y - 1
        if config.shift is not None:
            y = y + config.shift
        y = y * config.pair[0] + config.frozen.rate * config.pair[1]
        y = y if config.kind is Kind.SUM else -y
        return reduced(y, config.how) + reduced(x, config.frozen.kind)

    return step, batches(3, 4)


SCALE, TIMES, NAMES = 1.5, 3, ["a", "b"]
TABLE = {"a": 0.5, "b": 2.0}


def helper(x, by=0.25, *, plus=1.0):
    return x * by + plus * SCALE


def step_of_globals(x):
    for name in NAMES:
        x = x * TABLE[name]
    return helper(x) * TIMES


def globals_and_defaults():
    return step_of_globals, batches(3, 4)


def closures():
    rate, depth, terms = 0.5, 2, (1.0, 2.0)

    def inner(x):
        return x * rate + sum(terms)

    def step(x):
        for _ in range(depth):
            x = inner(x)
        return x

    return step, batches(3, 4)


class Base:
    factor = 1.5
    mode = "sum"

    def shifted(self, x):
        return x + self.offset


class Derived(Base):
    limit = 3

    def __init__(self):
        self.hidden = {"bias": 0.5}

    @property
    def offset(self):
        return self.hidden["bias"] * 2.0

    def __getattr__(self, name):
        if name == "gain":
            return self.hidden["bias"] + 1.0
        raise AttributeError(name)

    @classmethod
    def clipped(cls, x):
        return x.clamp(max=cls.limit)

    @staticmethod
    def doubled(x):
        return x * 2.0

    def __call__(self, x):
        y = self.clipped(self.shifted(x) * self.factor) * self.gain
        return reduced(self.doubled(y), self.mode)


def classes():
    thing = Derived()
    return lambda x: thing(x), batches(3, 4)


class Slotted:
    __slots__ = ("flag", "rate")

    def __init__(self):
        self.rate, self.flag = 0.75, True


class Descriptor:
    def __get__(self, thing, owner=None):
        return thing.rate * 3.0


class WithDescriptor(Slotted):
    tripled = Descriptor()


def slots():
    thing = WithDescriptor()

    def step(x):
        return x * thing.tripled if thing.flag else x - thing.rate

    return step, batches(3, 4)


def dictionaries():
    ordered = collections.OrderedDict(add=1.0, multiply=2.0, subtract=0.5)
    missing = collections.defaultdict(lambda: 0.25, {"known": 1.5})
    nested = {"a": {"b": {"c": 0.5}}, "flags": {"fast": True}}
    names = ["known", "known"]
    operators = {"add": operator.add, "multiply": operator.mul, "subtract": operator.sub}

    def step(x):
        for name, value in ordered.items():
            x = operators[name](x, value)
        x = x * nested["a"]["b"]["c"] if nested["flags"]["fast"] else x
        return x * missing[names[0]] + len(missing)

    return step, batches(3, 4)


def _listed(count):
    scales = [1.0 + i / 1000 for i in range(count)]

    def step(x):
        for scale in scales:
            x = x * scale
        return x + scales[-1]

    return step, batches(3)


def list_of_1():
    return _listed(1)


def list_of_100():
    return _listed(100)


def list_of_128():
    return _listed(128)


def dict_of_128():
    biases = {f"layers.{i}": i / 1000 for i in range(128)}

    def step(x):
        for i in range(0, 128, 8):
            x = x + biases[f"layers.{i}"]
        return x * 2

    return step, batches(3)


def sets_and_deques():
    layers, never = {0, 2}, frozenset({1})
    recent, counted = collections.deque([0.5, 1.5], maxlen=4), collections.Counter(a=2, b=1)

    def step(x):
        for i in range(4):
            if i in layers and i not in never:
                x = x * (i + 1.5)
        return x * recent[0] + recent[-1] + counted["a"] * counted.total()

    return step, batches(3, 4)


WINDOW = contextvars.ContextVar("window", default=2)
RATE = contextvars.ContextVar("rate", default=1.5)


def contexts():
    RATE.set(1.5)

    def step(x):
        return x[:, :WINDOW.get()] * RATE.get()

    return step, batches(3, 4)


def thread_locals():
    local = threading.local()
    local.scale = 1.5

    def step(x):
        return x * local.scale

    return step, batches(3, 4)


def partials_and_registries():
    def scaled(x, by, plus=0.0):
        return x * by + plus

    bound = functools.partial(scaled, plus=1.0)
    registry = {"relu": torch.relu, "tanh": torch.tanh, "half": lambda x: x * 0.5}
    chosen = SimpleNamespace(name="relu", order=["relu", "half"])

    def step(x):
        x = bound(x, 2.0)
        for name in chosen.order:
            x = registry[name](x)
        return registry[chosen.name](x)

    return step, batches(3, 4)


def nine_levels_down():
    leaf = SimpleNamespace(rate=0.5, kind="sum")
    config = leaf
    for _ in range(9):
        config = SimpleNamespace(inner=config)

    def step(x):
        there = config
        for _ in range(9):
            there = there.inner
        return reduced(x * there.rate, there.kind)

    return step, batches(3, 4)


KEPT = []


def weak_and_cached():
    KEPT.append(Config())
    weak = weakref.ref(KEPT[-1])

    @functools.lru_cache
    def factor(name):
        return {"a": 1.5, "b": 3.0}[name]

    names = {"now": "a"}

    def step(x):
        return x * weak().scale + factor(names["now"])

    return step, batches(3, 4)


def argument_objects():
    config, options = Config(), {"gain": 2.0, "names": ["a", "b"]}

    def step(x, config, options, *, extra=(1.0, 2.0)):
        y = x * config.scale if config.is_on else x
        return reduced(y, config.how) * options["gain"] + len(options["names"]) + extra[1]

    def args(i):
        return numbers(i % 5, 3, 4), config, options

    return step, args


class Registered(type):
    shared = 0.5

    @property
    def doubled(cls):
        return cls.shared * 2


class OfMeta(metaclass=Registered):
    own = 1.5


def metaclasses():
    def step(x):
        return x * OfMeta.doubled + OfMeta.own

    return step, batches(3, 4)


def names_made_of_texts():
    config = Config()
    names = SimpleNamespace(attribute="scale", item="right", path="frozen.rate")
    table = {"left": 0.5, "right": 2.5}
    get = operator.attrgetter("scale", "times")

    def step(x):
        scale, times = get(config)
        y = x * getattr(config, names.attribute) + vars(config)["times"]
        y = y * operator.attrgetter(names.path)(config)
        return y * table.get(names.item, 1.0) + scale * times

    return step, batches(3, 4)


def comprehensions():
    weights, keep = [0.5, 1.5, 2.5], {"least": 1.0}
    order = [2, 0, 1]

    def step(x):
        chosen = [weights[i] for i in order if weights[i] >= keep["least"]]
        total = sum(w * 2 for w in weights) + max(map(abs, weights))
        return x * sum(chosen) + total + sorted(weights, key=lambda w: -w)[0]

    return step, batches(3, 4)


settings = types.ModuleType("campaign_settings")
settings.__dict__.update(RATE=0.5, LAYERS=[1.0, 2.0], HOW="sum")


def dotted_names():
    def step(x):
        for layer in settings.LAYERS:
            x = x * layer + settings.RATE
        return reduced(x, settings.HOW)

    return step, batches(3, 4)


PROGRAMS = [attributes, globals_and_defaults, closures, classes, slots, dictionaries, list_of_1,
            list_of_100, list_of_128, dict_of_128, sets_and_deques, contexts, thread_locals,
            partials_and_registries, nine_levels_down, weak_and_cached, argument_objects,
            metaclasses, names_made_of_texts, comprehensions, dotted_names]

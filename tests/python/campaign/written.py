# SPDX-License-Identifier: Apache-2.0
"""Steps that write Python's own state, made of some of the writes below by a seed. As a program, each
is a module of its own."""

from __future__ import annotations

import random
from typing import NamedTuple


class Write(NamedTuple):
    """Lines of a step, by what the program has (``_BEGINNING``), over the tensor y."""

    name: str
    lines: str


_BEGINNING = """
import collections, functools, itertools
import torch
from common import batches, numbers

class State:
    total = 0

    def __init__(self):
        self.t, self.last, self.flag, self.ema, self.rate = 0, None, False, 0.0, 1.0
        self.kept, self.text, self.shape, self.pair, self.few = None, "", None, (0, 0), [1]

class Slotted:
    __slots__ = ("n",)

NUMBER, TOTALS = 0, {"all": 0}

@functools.lru_cache
def cached(size):
    return size * 2.0

def generator():
    n = 0
    while True:
        n += 1
        yield n

def program():
    global NUMBER
    NUMBER = 0
    state, slotted, cell = State(), Slotted(), 0
    slotted.n, state.inner = 0, State()
    items, log, table = [0, 5, 3], list(range(24, 0, -1)), {"a": 1, "n": 0}
    names = {f"k{i}": i for i in range(24)}
    seen, queue = set(range(24)), collections.deque(range(24), maxlen=30)
    counts, ordered = collections.Counter(a=1), collections.OrderedDict(names)
    missing, tensors, history = collections.defaultdict(list), {}, [numbers(1, 3)]
    listed, made, counter = iter(range(100)), generator(), itertools.count(1)
    cycle, pairs = itertools.cycle([1, 2, 3]), zip(range(100), range(100, 200))
    short, given = iter([1, 2, 3]), iter([numbers(i, 3) for i in range(60)])
    weight = numbers(2, 3)
"""

WRITES = [Write(*each) for each in (
    # Counters.
    ("attribute counts", "state.t += 1"),
    ("inner attribute counts", "state.inner.t += 2"),
    ("item of a dict counts", "table['n'] = table['n'] + 2"),
    ("item of a list counts", "items[0] += 1"),
    ("global counts", "NUMBER += 1"),
    ("item of a global counts", "TOTALS['all'] += 1"),
    ("cell counts", "cell += 1"),
    ("class attribute counts", "State.total += 1"),
    ("slot counts", "slotted.n += 1"),
    ("Counter counts", "counts['a'] += 1"),
    ("counter down to zero", "state.t = (state.t + 1) % 4"),
    # Counters that are read.
    ("counter scales", "state.t += 1\ny = y * state.t"),
    ("bias correction", "state.t += 1\ny = y / (1 - 0.9 ** state.t)"),
    ("item scales", "items[0] += 1\ny = y + items[0]"),
    ("global scales", "NUMBER += 1\ny = y * NUMBER"),
    ("branch each fifth", "state.t += 1\nif state.t % 5 == 0:\n    y = y * 2"),
    ("branch behind a limit", "cell += 1\nif cell > 10:\n    y = y + 1"),
    ("length is read", "log.append(1)\ny = y + len(log)"),
    ("average is read", "state.ema = 0.9 * state.ema + 0.1\ny = y * state.ema"),
    ("rate is read", "y = y * state.rate\nstate.rate *= 0.95"),
    ("text of a counter", "state.t += 1\nstate.text = f'step {state.t}'"),
    ("name by a counter", "state.t += 1\nsetattr(state, f'a{state.t % 3}', state.t)"),
    # What is assigned.
    ("text", "state.last = 'done'"),
    ("switch", "state.flag = True"),
    ("switch back and forth", "state.flag = not state.flag"),
    ("shape", "state.shape = tuple(y.shape)"),
    ("tuple", "state.pair = (state.pair[1], state.pair[0] + 1)"),
    ("another list", "state.few = [*state.few, 1][-4:]"),
    ("none", "table['last'] = None"),
    ("swap", "items[1], items[2] = items[2], items[1]"),
    # Floats.
    ("average", "state.ema = 0.9 * state.ema + 0.1"),
    ("rate", "state.rate *= 0.95"),
    ("rate with an end", "state.rate = max(state.rate * 0.9, 0.5)"),
    # Lists.
    ("append", "log.append(3)"),
    ("extend", "log.extend([1, 2])"),
    ("+=", "log += [4]"),
    ("pop", "log.pop()"),
    ("pop the first", "log.pop(0)"),
    ("insert", "log.insert(0, 7)"),
    ("remove", "log.remove(log[3])"),
    ("del", "del log[1]"),
    ("clear", "log.clear()\nlog.append(1)"),
    ("sort", "log.append(0)\nlog.sort()"),
    ("reverse", "log.reverse()"),
    ("last three", "log.append(9)\nlog[:] = log[-3:]"),
    ("append a counter", "state.t += 1\nlog.append(state.t)"),
    # Dicts.
    ("update", "table.update(a=2, b=3)"),
    ("new key", "table[f'k{len(table)}'] = 1"),
    ("pop of a dict", "names.pop(next(iter(names)))"),
    ("popitem", "names.popitem()"),
    ("setdefault", "table.setdefault('once', []).append(1)"),
    ("move to end", "ordered.move_to_end(next(iter(ordered)))"),
    ("first out", "ordered.popitem(last=False)"),
    ("default", "missing['a'].append(1)"),
    ("Counter.update", "counts.update('ab')"),
    # Sets and deques.
    ("add", "seen.add('a')"),
    ("add a counter", "cell += 1\nseen.add(100 + cell)"),
    ("discard", "seen.discard(min(seen, key=str))"),
    ("set of last", "seen.clear()\nseen.add(1)"),
    ("append to a deque", "queue.append(1)"),
    ("append on the left", "queue.appendleft(2)"),
    ("popleft", "queue.popleft()"),
    ("rotate", "queue.rotate(1)"),
    # Iterators.
    ("next of a list", "next(listed)"),
    ("next of a generator", "next(made)"),
    ("next of a count", "next(counter)"),
    ("next of a cycle", "next(cycle)"),
    ("next of a zip", "next(pairs)"),
    ("next scales", "y = y * next(counter)"),
    ("cycle scales", "y = y * next(cycle)"),
    ("generator scales", "y = y + next(made)"),
    ("next tensor", "y = y + next(given)"),
    ("epochs", "try:\n    next(short)\nexcept StopIteration:\n    short = iter([1, 2, 3])"),
    # Tensors.
    ("bind a tensor", "state.kept = y.clone()"),
    ("tensor in a dict", "tensors['y'] = y.clone()"),
    ("append a tensor", "history.append(y.clone())"),
    ("tensors of late", "history.append(y.clone())\ndel history[:-3]"),
    ("tensor of a global", "TOTALS['y'] = y.clone()"),
    ("bound and read", "y = y if state.kept is None else y + state.kept\nstate.kept = y.clone()"),
    ("write in place", "weight.mul_(0.99)\ny = y + weight"),
    # What is no effect.
    ("cache", "y = y * cached(3)"),
    ("print", "print('a step')"),
    ("own containers", "own = [1]\nown.append(2)\ny = y * len(own)"),
)]
BY_NAME = {write.name: write for write in WRITES}
_WORK = ["y = y * 1.5 + 0.25", "y = torch.tanh(y)", "y = y + weight", "y = y.cumsum(0)"]


def drawn(seed: int) -> list[Write]:
    """The writes of a generated step."""
    source = random.Random(seed)
    return source.sample(WRITES, source.randint(2, 6))


def source_of(writes: list[Write], seed: int = 0) -> str:
    """A program with these, and work for a GPU between them."""
    source = random.Random(seed)
    lines = ["global NUMBER", "nonlocal cell, log, short", "y = x * 2"]
    for write in writes:
        lines += [source.choice(_WORK), *write.lines.split("\n")]
    lines.append("return y")
    step = "".join(f"        {line}\n" for line in lines)
    return f"{_BEGINNING}\n    def step(x):\n{step}\n    return step, batches(3)\n\n" \
        "PROGRAMS = [program]\n"

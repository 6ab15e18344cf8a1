# SPDX-License-Identifier: Apache-2.0
"""Nothing tells gradients that the compiled module sets from those that torch's Python sets: random
programs over both, side by side."""

from __future__ import annotations

import copy
import gc
import random
import struct
import weakref

import pytest
import torch
from torch import nn

from anabranch import _compat
from anabranch._record import quick

pytestmark = [
    pytest.mark.oldest,
    pytest.mark.skipif(not quick.sets_gradients, reason="torch's Python sets gradients"),
    pytest.mark.filterwarnings("ignore:grad and param do not obey the gradient layout contract"),
]
SHAPE = (2, 3)
VIEWS = [(SHAPE, (3, 1), 0), (SHAPE, (1, 2), 7), (SHAPE, (3, 1), 20)]
ROWS = b"".join([*(quick.gradient_row(i, 0, view) for i, view in enumerate(VIEWS)),
                 quick.gradient_row(3, 1, None)])


class Owners:
    """Four, and what a program keeps of their gradients."""

    def __init__(self, by_the_module):
        self.by_the_module = by_the_module
        self.all = [nn.Parameter(torch.zeros(SHAPE)) for _ in range(4)]
        self.kept, self.watched = [], []

    def let_go(self, which):
        if self.by_the_module:
            assert quick.let_go_of_gradients(self.all, struct.pack(f"{len(which)}Q", *which))
        else:
            for i in which:
                self.all[i].grad = None

    def set(self, seed):
        generator = torch.Generator().manual_seed(seed)
        bases = [torch.rand(30, generator=generator), torch.rand(SHAPE, generator=generator)]
        if self.by_the_module:
            assert quick.set_gradients(self.all, bases, ROWS)
        else:
            for owner, view in zip(self.all, VIEWS, strict=False):
                owner.grad = _compat.reinterpret_tensor(bases[0], *view)
            self.all[3].grad = bases[1]

    def told(self):
        gradients = [owner.grad for owner in self.all]
        return ([None if one is None else (one.tolist(), one.stride(), one._version, one.is_leaf,
                                           one.requires_grad, getattr(one, "mark", None))
                 for one in gradients],
                [one.tolist() for one in self.kept], [gone() is None for gone in self.watched])

    def do(self, operation, i, x, seed):
        """One thing that a program may do; ``x`` is below 1."""
        gradient = self.all[i].grad
        if operation == "let go":
            self.let_go(sorted({i, int(4 * x)}))
        elif operation == "set":
            self.set(seed)
        elif operation == "backward":
            (self.all[i] * x).sum().backward()
        elif operation == "forget":
            self.kept = self.kept[len(self.kept) // 2:]
        elif gradient is None:
            return
        elif operation == "keep":
            self.kept.append(gradient.detach() if x < 0.5 else gradient)
        elif operation == "write":
            gradient.mul_(x)
        elif operation == "watch":
            gradient.mark = seed
            self.watched.append(weakref.ref(gradient))
        elif operation == "copy":
            self.all[i] = copy.deepcopy(self.all[i])
        elif operation == "replace":
            self.all[i].grad = gradient.clone() if x < 0.5 else None


OPERATIONS = ["let go", "set", "set", "backward", "forget", "keep", "write", "watch", "copy",
              "replace"]


@pytest.mark.parametrize("seed", range(8))
def test_nothing_tells_by_what_gradients_have_been_set(seed):
    choices = random.Random(seed)
    both = Owners(by_the_module=True), Owners(by_the_module=False)
    for step in range(150):
        what = choices.choice(OPERATIONS), choices.randrange(4), choices.random(), step
        for owners in both:
            owners.do(*what)
        assert both[0].told() == both[1].told(), what
    gc.collect()
    assert both[0].told() == both[1].told()

# SPDX-License-Identifier: Apache-2.0
"""The operations of code name what Python's dis says that they name."""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import types

import pytest
import torch
from torch import nn

from anabranch._record.state import bytecode
from anabranch._record.state.bytecode import operations

pytestmark = pytest.mark.oldest


def codes_in(module):
    waiting = [one.__code__ for one in vars(module).values()
               if isinstance(one, types.FunctionType)]
    waiting += [one.__code__ for kind in vars(module).values() if isinstance(kind, type)
                for one in vars(kind).values() if isinstance(one, types.FunctionType)]
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [one for one in code.co_consts if isinstance(one, types.CodeType)]


@pytest.mark.parametrize("module", [
    nn.functional, nn.modules.module, nn.modules.transformer, torch.optim.lr_scheduler,
    inspect, functools, contextlib, dis], ids=lambda one: one.__name__)
def test_operations_name_what_dis_says(module):
    seen = 0
    for code in codes_in(module):
        told = [one for one in dis.get_instructions(code)
                if one.opname not in ("CACHE", "EXTENDED_ARG")]
        mine = operations(code)
        assert [one.opname for one in mine] == [one.opname for one in told]
        for one, other in zip(mine, told, strict=True):
            is_named = other.opcode in dis.hasname
            assert one.is_of_name == is_named
            if is_named or other.opcode in dis.hasfree:
                assert one.named == other.argval and one.arg == other.arg
                seen += 1
    assert seen > 50


def test_more_names_than_fit_a_byte_are_told_apart():
    many = {}
    exec("def f(x):\n" + "".join(f"    x.name{i}; y{i}\n" for i in range(400)), many)
    found = [one.named for one in operations(many["f"].__code__) if one.is_of_name]
    assert found == [name for i in range(400) for name in (f"name{i}", f"y{i}")]
    assert bytecode.operations.cache_info().maxsize

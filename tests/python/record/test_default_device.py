# SPDX-License-Identifier: Apache-2.0
"""The package's own tensors under a default device that a program sets."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from torch.utils._device import _device_constructors

import anabranch

pytestmark = pytest.mark.oldest
FACTORIES = {function.__name__ for function in _device_constructors()}
NOT_IN_A_CALL = {"_self_test.py", "reproducer.py"}  # programs of their own


def factory_calls(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) \
                and node.func.attr in FACTORIES and isinstance(node.func.value, ast.Name) \
                and node.func.value.id == "torch":
            yield node


def test_each_tensor_that_the_package_makes_says_where_it_lies():
    """A default device would move it."""
    calls = [(path.name, node) for path in Path(anabranch.__path__[0]).rglob("*.py")
             if path.name not in NOT_IN_A_CALL for node in factory_calls(path)]
    assert len(calls) > 20
    assert [(name, node.lineno) for name, node in calls
            if not any(given.arg in ("device", None) for given in node.keywords)] == []

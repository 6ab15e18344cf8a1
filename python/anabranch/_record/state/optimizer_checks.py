# SPDX-License-Identifier: Apache-2.0
"""Checks that optimizers have the same groups, with the same hyperparameters.

Threads: one makes them. Failure: NotQuick.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from anabranch._record.checks import At, Check, Kind
from anabranch._record.state.guards import is_plain
from anabranch._record.state.number_places import NumberPlaces, hyperparameter_items
from anabranch._record.state.place_checks import NotQuick, PlaceChecks


def add_groups(checks: PlaceChecks, optimizers: Iterable[torch.optim.Optimizer],
               follows: NumberPlaces) -> None:
    """But for numbers that are followed."""
    for i, optimizer in enumerate(optimizers):
        groups = optimizer.param_groups
        if vars(optimizer).get("param_groups") is not groups or type(groups) is not list:
            raise NotQuick("an optimizer shows another one's groups")
        checks.add((vars(optimizer), "param_groups"), Kind.IS, groups, name="param_groups")
        checks.add_length(groups, len(groups), name="param_groups")
        for j, group in enumerate(groups):
            checks.add((groups, j), Kind.IS, group, name="param_groups")
            checks.add_length(group, len(group), name="an optimizer's numbers")
            for key, value in group.items():
                if isinstance(value, Tensor):
                    checks.add((group, key), Kind.TYPE, type(value))
                elif key != "params":
                    _add_hyperparameter(checks, follows, (i, j, key), group, value)


def _add_hyperparameter(checks: PlaceChecks, follows: NumberPlaces, name: tuple[int, int, str],
                        group: dict[str, Any], value: Any) -> None:
    numbers = {one: len(follows.arguments) + number
               for number, one in enumerate(follows.hyperparameters)}
    told, items = f"an optimizer's {name[2]}", hyperparameter_items((*name, None), value)
    if numbers.keys().isdisjoint(one for one, _ in items):
        kind = Kind.EQUALS if is_plain(value) else Kind.IS
        checks.add((group, name[2]), kind, value, name=told)
    elif type(value) is not tuple:
        checks.add((group, name[2]), Kind.FLOAT, to=numbers[items[0][0]], name=told)
    else:
        register = checks.registers.new()
        checks.add((group, name[2]), Kind.TYPE, tuple, to=register, name=told)
        checks.all.append(Check(Kind.LENGTH, At.ITSELF, None, None, len(value), register))
        for one, part in items:
            kind = Kind.FLOAT if one in numbers else Kind.EQUALS
            checks.all.append(Check(kind, At.ITEM, None, one[3], part, register,
                                    numbers.get(one, -1), told))

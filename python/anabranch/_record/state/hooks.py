# SPDX-License-Identifier: Apache-2.0
"""Guards on the hooks of modules, optimizers and parameters, and on torch's hooks for all modules
and optimizers. A recording repeats what the hooks did that there were when it was made, so another
hook is another signature.

Most objects have no hooks. They are searched again only when a hook has been registered anywhere in
the process since. Threads: as the modules. Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from anabranch import _compat
from anabranch._record.checks import Kind, answers
from anabranch._record.state.place_checks import PlaceChecks

_OF_MODULES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OF_OPTIMIZERS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
HOOKS = (*_OF_MODULES, *_OF_OPTIMIZERS)  # names of what has them
_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class Hooks:
    """The hooks of one state. Parameters are given at each look, since there may be new ones."""

    def __init__(self, modules: Iterable[nn.Module],
                 optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._modules, self._optimizers = modules, optimizers
        self._registered = -1
        self._some: list[tuple[Any, Mapping[int, Any]]] = []

    def now(self, parameters: Iterable[Tensor]) -> tuple[Any, ...]:
        """The hooks at each place, by torch's numbers for them. No number is used twice."""
        registered = RemovableHandle.next_id
        if registered != self._registered:
            self._some = [(place, hooks) for place, hooks in self._all(parameters) if hooks]
            self._registered = registered
        return tuple([(place, *hooks) for place, hooks in self._some if hooks]) \
            if self._some else ()

    def add_checks(self, checks: PlaceChecks) -> None:
        """That there are still those of the last look."""
        checks.add((vars(RemovableHandle), "next_id"), Kind.EQUALS, self._registered, name="hooks")
        for _, hooks in self._some:
            checks.all.append(answers(tuple, (hooks,), tuple(hooks), "hooks"))

    def _all(self, parameters: Iterable[Tensor]) -> Iterator[tuple[Any, Any]]:
        yield from _compat.global_hooks()
        for kind, things, names in (("module", self._modules, _OF_MODULES),
                                    ("optimizer", self._optimizers, _OF_OPTIMIZERS),
                                    ("parameter", parameters, _OF_PARAMETERS)):
            for i, thing in enumerate(things):
                for name in names:
                    yield (kind, i, name), getattr(thing, name, None)

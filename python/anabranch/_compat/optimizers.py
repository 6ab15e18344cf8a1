# SPDX-License-Identifier: Apache-2.0
"""What torch puts around the steps of optimizers."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch


def own_step(kind: type[torch.optim.Optimizer]) -> Callable[..., Any]:
    """The step of a class without the hooks that torch has put around it."""
    step: Any = kind.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def with_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step of a class, as torch makes it: hooks run around it, once. Dynamo leaves it alone."""
    hooked: Any = torch.optim.Optimizer.profile_hook_step(torch.compiler.disable(step))
    hooked.hooked = True
    return hooked


def steps_by_its_class(optimizer: torch.optim.Optimizer) -> bool:
    """Whether nothing stands in the place of its step but what a scheduler puts there."""
    step = vars(optimizer).get("step")
    return step is None or hasattr(step, "_wrapped_by_lr_sched")


def let_schedulers_see_steps(optimizer: torch.optim.Optimizer) -> None:
    """A scheduler that was made before has put itself around the step of a class that is not the
    optimizer's any more, and warns where it finds that it is gone."""
    if vars(optimizer).pop("step", None) is None:
        return
    seen = weakref.ref(optimizer)  # no cycle
    step: Any = type(optimizer).step

    @functools.wraps(step)
    def stepped(*args: Any, **kwargs: Any) -> Any:
        one: Any = seen()
        one._opt_called = True
        return step(one, *args, **kwargs)

    stepped._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    vars(optimizer)["step"] = stepped

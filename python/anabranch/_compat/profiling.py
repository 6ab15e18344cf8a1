# SPDX-License-Identifier: Apache-2.0
"""Names of ours in what torch's profiler takes down. Threads: any. Failure: none."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.autograd import profiler

# Where it stands that no profile is being taken, and what: holder, key and value.
NO_PROFILE = vars(profiler), "_is_profiler_enabled", False


def in_profiles(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function. Where a profile is being taken, its call is a launch of this name in it; else
    that costs a look at a variable."""
    if not profiler._is_profiler_enabled:
        return function
    return functools.partial(_named, function, name)


def _named(function: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
    with profiler.record_function(f"anabranch: launch of {name}"):
        return function(*args, **kwargs)

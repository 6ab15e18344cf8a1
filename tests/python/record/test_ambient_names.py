# SPDX-License-Identifier: Apache-2.0
"""All that torch has of ambient state is guarded, or there is a reason why it need not be."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch
from ambient_names import (
    GUARDED,
    OF_AUTOGRAD,
    OF_BACKENDS,
    OF_THREADS,
    ONLY_IN_OLDER,
    UNGUARDED,
)
from torch.autograd import anomaly_mode, forward_ad, grad_mode, graph

from anabranch import _compat
from anabranch._compat import torch_modes

pytestmark = pytest.mark.oldest
C = torch._C
ASKED = Path(torch_modes.__file__).read_text()
# Verbs of what tells or sets a state, and the names of guards and modes.
VERBS = re.compile(
    r"(^|_)(get|set|is|len|peek|top|push|pop|enter|exit|enable|disable|increment|decrement|stash"
    r"|activate)(_|[A-Z]|$)|(enabled|disabled|Guard|Mode|_tls|_TLS)$"
    r"|^_?(Auto|Enable|Disable|Force|Restore|Exclude|Include)[A-Z]")


def names_of_c():
    return {name for module in (C, C._autograd, C._functorch) for name in dir(module)
            if VERBS.search(name) and not name.startswith("__")
            and callable(getattr(module, name))}


def names_of_backends():
    """Properties, and functions that set something."""
    found = set()
    for one in pkgutil.iter_modules(torch.backends.__path__):
        module = importlib.import_module(f"torch.backends.{one.name}")
        properties = {name for kind in type(module).__mro__ for name, value in vars(kind).items()
                      if isinstance(value, torch.backends.ContextProp)}
        functions = {name for name, value in inspect.getmembers(module, inspect.isfunction)
                     if value.__module__ == module.__name__
                     and re.match("_?set_|enable_|preferred_|allow_|cublas", name)}
        found |= {f"{one.name}.{name}" for name in properties | functions}
    return found


def names_of_autograd():
    """Contexts."""
    return {name for module in (grad_mode, graph, anomaly_mode, forward_ad)
            for name, kind in inspect.getmembers(module, inspect.isclass)
            if hasattr(kind, "__enter__") and kind.__module__ == module.__name__}


def names_of_threads():
    header = Path(torch.__file__).parent / "include/ATen/ThreadLocalState.h"
    carried = header.read_text().split("private:")[1].split("friend class")[0]
    return set(re.findall(r"(\w+_)(?:\{\})?;", carried))


def patterns():
    """All there are for torch's C module."""
    return [*GUARDED, *(one for names in (*GUARDED.values(), *UNGUARDED.values())
                        for one in names.split())]


def test_each_name_of_torchs_c_module_that_says_state_is_guarded_or_has_a_reason():
    """Where this fails with a new torch: guard it (_compat/torch_modes.py), or say why not."""
    new = [name for name in sorted(names_of_c())
           if not any(fnmatchcase(name, one) for one in patterns())]
    assert not new


@pytest.mark.parametrize("found, known", [
    (names_of_backends, OF_BACKENDS), (names_of_autograd, OF_AUTOGRAD),
    (names_of_threads, OF_THREADS)])
def test_so_is_each_that_is_reached_in_another_way(found, known):
    new = [name for name in sorted(found()) if not any(fnmatchcase(name, one) for one in known)]
    assert not new and found()
    by = set(known.values())
    assert by.issubset({*GUARDED, *UNGUARDED, "_is_fastpath_enabled", "_get_enabled"})


def test_each_name_that_is_guarded_is_asked():
    assert [name for name in GUARDED if f'"{name}"' not in ASKED and f".{name}" not in ASKED] == []


def test_no_name_is_both_guarded_and_excused():
    excused = [one for names in UNGUARDED.values() for one in names.split()]
    guarded = [*GUARDED, *(one for names in GUARDED.values() for one in names.split())]
    both = [name for name in names_of_c() if any(fnmatchcase(name, one) for one in guarded)
            and any(fnmatchcase(name, one) for one in excused)]
    assert both == []


@pytest.mark.skipif(_compat.version < (2, 15), reason="it lacks what newer ones have")
def test_each_name_that_is_listed_is_one_of_torchs():
    names = {*names_of_c(), *dir(C), *dir(forward_ad), "has_no_node_hooks"}
    assert [one for one in patterns() if one not in ONLY_IN_OLDER
            and not any(fnmatchcase(name, one) for name in names)] == []


def test_all_hooks_for_all_modules_and_optimizers_are_guarded():
    known = {name for name, _ in _compat.global_hooks()}
    there = {name for module in (torch.nn.modules.module, torch_modes.optimizers)
             for name in vars(module) if name.startswith("_global")}
    # It says which kind of hooks there are, and changes with the first of them alone.
    assert there - known == {"_global_is_full_backward_hook"}

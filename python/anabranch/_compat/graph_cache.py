# SPDX-License-Identifier: Apache-2.0
"""AOTAutograd's cache, which hands back what it has made of a model without asking a compiler."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch._functorch.config as functorch_config
from torch._functorch._aot_autograd.aot_autograd_result import FxGraphCacheLoadable
from torch._functorch._aot_autograd.autograd_cache import FXGraphCacheMiss


def key_of_graph(compiled: Any) -> str | None:
    """Inductor's own, of a graph that it has compiled and may keep."""
    return getattr(compiled, "_fx_graph_cache_key", None)


@contextlib.contextmanager
def graphs_from_cache(resume: Callable[[str, Any], None]) -> Iterator[None]:
    """Around the compilation of a model. A graph that comes out of the cache goes to ``resume``
    first, with its key; where that raises KeyError the model is compiled as if the cache did not
    have it. Compilations are one at a time in a process, by Dynamo's lock."""
    if functorch_config.bundled_autograd_cache:  # graphs lie in it without their keys
        with without_autograd_cache():
            yield
        return
    graph: Any = FxGraphCacheLoadable
    original = graph.post_compile

    def post_compile(self: Any, result: Any, fx_config: Any) -> Any:
        made = original(self, result, fx_config)
        try:
            resume(self.fx_graph_cache_info[0], made)
        except KeyError as error:
            raise FXGraphCacheMiss from error
        return made

    graph.post_compile = post_compile
    try:
        yield
    finally:
        graph.post_compile = original


def without_autograd_cache() -> contextlib.AbstractContextManager[None]:
    """Around the compilation of a model: its graphs come to our compiler, and not from a cache."""
    return functorch_config.patch(enable_autograd_cache=False)

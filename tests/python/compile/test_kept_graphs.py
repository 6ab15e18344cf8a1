# SPDX-License-Identifier: Apache-2.0
"""Models that AOTAutograd's cache has: compiled no second time, and recorded and told of as ever."""

from __future__ import annotations

import dataclasses
import pickle
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.utils import counters

import anabranch
from anabranch import _compat, config
from anabranch._compile import backend, kept_graphs, report
from anabranch._compile.cuts import Cuts
from anabranch._compile.kept_graphs import GraphFacts, facts_of_kept, keep
from anabranch._fx.source import SourceLine
from anabranch._record.launch.saved_blocks import SavedBlocks
from anabranch._record.recorded_graph import RecordedGraph
from anabranch._record.refusals import Cause

pytestmark = pytest.mark.oldest
FACTS = GraphFacts("backward", 3, [], True, False, 4, Cuts(), None, [1])


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    """One that does not have the test's models: an option that has no effect here is in its keys."""
    monkeypatch.setattr(kept_graphs, "_path_of", lambda key: tmp_path / key)
    with config.patch(bucket_bytes=time.time_ns()):
        yield


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(5, 7), torch.nn.Linear(7, 3)

    def forward(self, x):
        return self.second(self.first(x).tanh())


def trained(**options):
    """Gradients of a model that is compiled anew, what the cache did, and what is told of it."""
    torch._dynamo.reset()
    counters.clear()
    made = Model()
    call = torch.compile(made, backend="anabranch", options=options)
    x = torch.arange(20.0).reshape(4, 5) / 10
    loss = call(x).sum()
    loss.backward(retain_graph=True)
    loss.backward()  # which torch.compile by itself forbids
    explanation = anabranch.explain(lambda: call(x).sum().backward())
    told = explanation.graphs
    hits = counters["aot_autograd"]["autograd_cache_hit"]
    assert ("from torch's cache" in str(explanation)) == bool(hits)
    return [parameter.grad for parameter in made.parameters()], hits, told


def test_a_model_that_the_cache_has_is_the_same_and_told_alike():
    wanted, hits, first = trained()
    assert hits == 0
    found, hits, again = trained()
    assert hits == 1 and all(map(torch.equal, found, wanted))
    for one, other in zip(first, again, strict=True):
        assert (one.kind, one.nodes, one.lines) == (other.kind, other.nodes, other.lines)
        assert one.lines and other.phase_seconds == {}  # nothing was compiled
    assert [graph.kind for graph in again] == ["forward", "backward"]


def test_options_that_change_what_is_compiled_find_their_own():
    trained()
    assert trained(bucket_bytes=1)[1] == 0
    assert trained(bucket_bytes=1)[1] == 1


def test_a_model_of_whose_graphs_nothing_is_known_is_compiled_as_ever(tmp_path):
    wanted, *_ = trained()
    for path in tmp_path.iterdir():
        path.write_bytes(pickle.dumps("something else"))
    found, hits, told = trained()
    assert hits == 0 and all(map(torch.equal, found, wanted)) and len(told) == 2
    assert trained()[1] == 1  # and known again


def test_what_cannot_be_written_is_not_kept_and_no_error(monkeypatch):
    monkeypatch.setattr(kept_graphs, "_path_of", lambda key: Path("/proc/nowhere/key"))
    wanted, *_ = trained()
    found, hits, _ = trained()
    assert hits == 0 and all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("options", [{"activation_memory": 0.5}, {}])
def test_models_with_wishes_and_plans_come_from_no_cache(options):
    def function(x):
        with anabranch.stream("side"):
            y = x.sin()
        return y + x.cos()

    for _ in range(2):
        torch._dynamo.reset()
        counters.clear()
        call = torch.compile(Model() if options else function, backend="anabranch",
                             options=options)
        call(torch.ones(4, 5))
        assert not any("cache" in name for name in counters["aot_autograd"])


def test_a_graph_from_the_cache_is_recorded_as_one_that_is_compiled(monkeypatch):
    made = []
    monkeypatch.setattr(report, "add", lambda facts, *more: made.append(facts))
    monkeypatch.setattr(_compat, "parts_of", lambda compiled: [])
    monkeypatch.setattr(_compat, "replace_parts", lambda compiled, parts: None)
    compiled, saved = SimpleNamespace(current_callable=len), SavedBlocks()
    keep("key", FACTS)
    backend._resume(config.resolve({}), saved, "key", compiled)
    recorded = compiled.current_callable
    assert made == [FACTS] and isinstance(recorded, RecordedGraph)
    assert recorded._recorder._kind.is_backward and recorded._recorder._kind.tangents == [1]
    assert recorded._recorder._chosen.max_parallel_kernels == 4
    assert recorded._given is saved
    cut = Cuts((Cause.GRAPH_IN_PARTS.because("it looks at a value"),))
    keep("in parts", GraphFacts("inference", 3, [], True, False, 4, cut, None, []))
    compiled.current_callable = len
    backend._resume(config.resolve({}), saved, "in parts", compiled)
    assert compiled.current_callable is len  # recorded in parts
    with pytest.raises(KeyError):
        facts_of_kept("another")


def test_of_a_graph_that_two_models_have_otherwise_nothing_is_known():
    line = SourceLine("model.py", 1, "forward", "x")
    keep("key", FACTS)
    keep("key", dataclasses.replace(FACTS, lines=[line]))
    assert facts_of_kept("key").lines == [line]
    for facts in (dataclasses.replace(FACTS, saved_from=2), FACTS):
        keep("key", facts)
        with pytest.raises(KeyError):
            facts_of_kept("key")

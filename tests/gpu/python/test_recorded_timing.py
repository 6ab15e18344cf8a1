# SPDX-License-Identifier: Apache-2.0
"""Times inside recordings on a GPU: launches that are timed do the same work, and every kernel has
its time, its lane and, of compiled code, its line."""

from __future__ import annotations

import json

import pytest
import torch
from recordings import assert_launched, normal
from torch import nn

import anabranch
from anabranch._record.trial import overlap as overlap_module


class Model(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = self.second(x)
        return torch.tanh(self.left(x)) + torch.sin(self.right(x))


def training(**options):
    torch.manual_seed(0)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True, capturable=True)
    call = torch.compile(lambda x: model(x).square().mean())

    def step(x):
        loss = call(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return anabranch.record(step, **options), model


def timing_of(step):
    [timing] = [report.timing for report in step.reports if report.timing is not None]
    return timing


def assert_in_order(nodes):
    assert nodes and all(0 <= node["begin_ns"] <= node["end_ns"] for node in nodes)
    for node in nodes:
        assert all(nodes[on]["end_ns"] <= node["begin_ns"] for on in node["after"])


def test_a_training_step_whose_launches_are_timed_trains_as_one_without():
    (timed, model), (plain, other) = training(timing=True), training()
    for i in range(140):  # three of these are timed
        x = normal(i, 32, 64)
        assert torch.equal(timed(x), plain(x)), i
    torch.cuda.synchronize()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    sample = timing_of(timed).sample
    assert sample is not None and sample.launches >= 2 and not timing_of(timed).why_not
    assert 0 < sample.plain_ns < 10 * sample.step_ns
    assert_launched(timed, 130)


def test_explain_tells_of_each_kernel_its_time_and_of_compiled_code_its_line():
    step, _ = training()
    for i in range(6):
        step(normal(i, 32, 64))
    told = anabranch.explain(step, normal(7, 32, 64), timing=True).to_dict()
    [timing] = [one["timing"] for one in told["callables"][0]["recordings"] if one["timing"]
                and one["timing"]["launches"]]
    assert_in_order(timing["nodes"])
    assert timing["attributed"] >= 0.9
    files = {row["line"]["file"] for row in timing["lines"] if row["line"]}
    assert files == {__file__}
    texts = {row["line"]["text"] for row in timing["lines"] if row["line"]}
    assert {"x = self.second(x)", "optimizer.step()"} <= texts
    assert timing["step_ns"] == max(node["end_ns"] for node in timing["nodes"])
    assert told["timelines"] and step.reports[-1].timing is None  # it is timed no more
    step(normal(8, 32, 64))


def test_eager_code_that_is_recorded_with_timing_has_lines_too():
    torch.manual_seed(0)
    model = Model().cuda()

    def step(x):
        y = model(x)
        loss = y.square().mean()
        loss.backward()
        for parameter in model.parameters():
            parameter.grad = None
        return loss.detach()

    timed, plain = anabranch.record(step, timing=True), anabranch.record(step)
    for i in range(6):
        x = normal(i, 32, 64)
        assert torch.equal(timed(x), plain(x))
    torch.cuda.synchronize()
    told = anabranch.explain(timed, normal(7, 32, 64)).to_dict()
    [timing] = [one["timing"] for one in told["callables"][0]["recordings"] if one["timing"]
                and one["timing"]["launches"]]
    texts = {row["line"]["text"] for row in timing["lines"] if row["line"]}
    assert {"loss.backward()", "loss = y.square().mean()", "x = self.second(x)"} <= texts
    assert timing["attributed"] >= 0.95


def test_kernels_side_by_side_are_timed_by_lane(monkeypatch):
    monkeypatch.setattr(overlap_module, "_LEAST_GAIN", 0.0)
    with anabranch.config.patch(parallel_bytes=1 << 40):
        model = Model().cuda()
        step = anabranch.record(torch.compile(model, dynamic=False))
        with torch.no_grad():
            for i in range(6):
                step(normal(i, 16, 64))
            told = anabranch.explain(step, normal(9, 16, 64), timing=True).to_dict()
    [one] = [one for one in told["callables"][0]["recordings"] if one["timing"]]
    if one["lanes"] < 2:
        pytest.skip(f"kept in captured order: {one['why_in_order']}")
    assert_in_order(one["timing"]["nodes"])
    assert len(one["timing"]["lanes"]) == one["lanes"]


def test_copies_from_pinned_memory_are_timed_and_bring_what_they_should():
    weights = [normal(i, 256, 256).cpu().pin_memory() for i in range(4)]

    def layers(x):
        for weight in weights:
            x = torch.tanh(x @ weight.to("cuda", non_blocking=True))
        return x

    call = torch.compile(layers)
    step = anabranch.record(call)
    with torch.no_grad():
        for i in range(5):
            step(normal(i, 8, 256))
        x, found = normal(9, 8, 256), []
        told = anabranch.explain(lambda: found.append(step(x)), timing=True).to_dict()
        assert torch.equal(found[0], call(x))
    [timing] = [one["timing"] for one in told["callables"][0]["recordings"] if one["timing"]]
    copies = [node for node in timing["nodes"] if node["kind"] == "host copy"]
    assert len(copies) == 4 and all(node["size_bytes"] == 256 * 256 * 4 for node in copies)


def test_graphs_of_the_backend_are_timed_forward_and_backward():
    model = Model().cuda()
    call = torch.compile(model, backend=anabranch.backend)

    def step(seed):
        call(normal(seed, 32, 64)).sum().backward()

    for i in range(6):
        step(i)
    told = anabranch.explain(step, 7, timing=True).to_dict()
    timings = {graph["kind"]: [one["timing"] for one in graph["recordings"] if one["timing"]]
               for graph in told["graphs"]}
    for kind in ("forward", "backward"):
        [timing] = timings[kind]
        assert timing["launches"] == 1
        without = {node["operator"] for node in timing["nodes"] if not node["line"]}
        # Of a product that it fuses with a sum of gradients, Inductor tells no line before 2.15.
        if torch.__version__ >= "2.15" or without != {"aten::addmm"}:
            assert timing["attributed"] >= 0.95, (kind, without)
        assert {row["line"]["file"] for row in timing["lines"] if row["line"]} == {__file__}
        assert_in_order(timing["nodes"])


def test_a_profile_of_torch_gets_the_lines_of_recorded_kernels(tmp_path):
    step, _ = training()
    for i in range(6):
        step(normal(i, 32, 64))
    x = normal(7, 32, 64)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as taken:
        step(x)
        torch.cuda.synchronize()
    path = tmp_path / "trace.json"
    taken.export_chrome_trace(str(path))
    kernels = [event for event in json.loads(path.read_text())["traceEvents"]
               if event.get("cat") == "kernel"]
    if not kernels:
        pytest.skip("torch's profiler sees no kernel here")
    assert anabranch.label_profile(path) >= step.reports[-1].nodes - 2
    sources = {event["args"]["source"] for event in json.loads(path.read_text())["traceEvents"]
               if "source" in event.get("args", {})}
    assert any("x = self.second(x)" in source for source in sources)

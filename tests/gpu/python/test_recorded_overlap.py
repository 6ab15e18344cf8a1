# SPDX-License-Identifier: Apache-2.0
"""Recordings whose kernels run side by side, against the same compiled code unrecorded. Whether
they are faster is for the benchmarks: here they are kept in any case."""

from __future__ import annotations

import pytest
import torch
from compare import assert_same, compiled
from recordings import assert_launched, batch, everything, mlp, normal, told, train_both, training
from torch import nn

import anabranch
from anabranch._record import attempt as attempt_module
from anabranch._record.memory.gpu import slack_bytes
from anabranch._record.trial import overlap as overlap_module

LANES = 4


@pytest.fixture(autouse=True)
def kept_in_any_case(monkeypatch):
    monkeypatch.setattr(overlap_module, "_LEAST_GAIN", 0.0)
    with anabranch.config.patch(parallel_bytes=1 << 40):
        yield


def assert_side_by_side(reports, least=2):
    text = "\n".join(map(str, reports))
    assert any(report.lanes >= least for report in reports), text
    assert all(0 < report.known <= report.nodes for report in reports if report.lanes > 1), text


class Branches(nn.Module):
    """Chains of products side by side, then one for all."""

    def __init__(self, count=4, depth=3, width=64):
        super().__init__()
        self.chains = nn.ModuleList(
            nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU())
                            for _ in range(depth))) for _ in range(count))
        self.last = nn.Linear(width, 4)

    def forward(self, x):
        return self.last(sum(chain(x) for chain in self.chains))


def test_branches_have_lanes_of_their_own():
    model = Branches().cuda()
    call = torch.compile(model, dynamic=False)
    step = anabranch.record(call, max_parallel_kernels=LANES)
    with torch.no_grad():
        pairs = [(step(normal(i, 16, 64)), call(normal(i, 16, 64))) for i in range(20)]
    assert all(torch.equal(found, wanted) for found, wanted in pairs)
    assert_launched(step)
    assert_side_by_side(step.reports, LANES)


def test_what_a_step_counts_is_no_further_on_than_plain_runs_make_it():
    """Launches that are verified and timed begin where the call does: a number may be an index, and
    the compiled code stops the device where that is behind the end."""
    model = Branches().cuda()

    def decode(x, cache, at):
        y = model(x)
        cache.index_copy_(0, at, y)
        at += 1
        return y

    call = torch.compile(decode, dynamic=False)
    step, calls, states = anabranch.record(call, max_parallel_kernels=LANES), 8, []
    for function in (step, call):
        cache, at = normal(0, calls, 4), torch.zeros(1, dtype=torch.int64, device="cuda")
        with torch.no_grad():
            states.append([*(function(normal(i, 1, 64), cache, at) for i in range(calls)), cache, at])
    assert all(torch.equal(found, wanted) for found, wanted in zip(*states, strict=True))
    assert_launched(step)
    assert_side_by_side(step.reports)


def test_a_long_producer_is_waited_for():
    """One branch takes a hundred times as long as the others, and what joins them needs it."""
    weight = normal(0, 4096, 4096) / 64

    def function(x, small):
        long = x
        for _ in range(8):
            long = long @ weight
        return long[:64, :64] + small @ small.T, small @ small, long.sum()

    call = torch.compile(function, dynamic=False)
    step = anabranch.record(call, max_parallel_kernels=LANES)
    for i in range(20):
        x, small = normal(i, 4096, 4096), normal(100 + i, 64, 64)
        found = step(x, small)
        x_again, small_again = x.clone(), small.clone()
        wanted = call(x_again, small_again)
        x.fill_(float("nan"))  # behind the launch, which has read it
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True)), i
    assert_launched(step)
    assert_side_by_side(step.reports)


@pytest.mark.parametrize("make_model", [mlp, lambda: mlp(nn.BatchNorm1d(32)),
                                        lambda: mlp(nn.Dropout(0.5))],
                         ids=["plain", "batch norm", "dropout"])
def test_whole_training_steps_do_what_they_do_in_captured_order(make_model):
    def make():
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True, capturable=True)
        call = torch.compile(model, dynamic=False)

        def step(x, y):
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.mse_loss(call(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, optimizer, step

    assert_side_by_side(train_both(make, options={"max_parallel_kernels": LANES}).reports)


@pytest.mark.parametrize("kind", [
    lambda p: torch.optim.AdamW(p, lr=0.01, fused=True, capturable=True),
    lambda p: torch.optim.AdamW(p, lr=0.01, capturable=True),
    lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
], ids=["fused AdamW", "AdamW", "SGD"])
def test_an_optimizer_runs_beside_the_backward(kind):
    def make():
        model = Branches(count=3, depth=4)
        model.cuda()
        optimizer = kind(model.parameters())
        call = torch.compile(lambda x: model(x).square().mean(), dynamic=False)

        def step(x):
            optimizer.zero_grad(set_to_none=True)
            loss = call(x)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, optimizer, step

    for options in ({}, {"verify": False}):
        report = train_both(make, inputs=lambda i: (normal(i, 16, 64),), options=options).reports
        if not options:
            assert_side_by_side(report)
            assert all(r.known >= r.nodes - 2 for r in report if r.nodes), "\n".join(map(str, report))


@pytest.mark.parametrize("kind", [
    lambda p: torch.optim.AdamW(p, lr=0.01, fused=True, capturable=True),
    lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, foreach=True),
], ids=["fused AdamW", "foreach SGD"])
def test_a_launch_over_a_list_has_the_addresses_of_its_own_tensors_alone(kind):
    """Of torch's, which have those of the launch before behind them."""
    sizes = [blocks * 65_536 for blocks in [1] * 8 + [200] * 3]

    def make():
        parameters = [nn.Parameter(normal(i, size)) for i, size in enumerate(sizes)]
        optimizer = kind(parameters)

        def step(x):
            # Copies, which name two addresses each and have nothing behind them.
            for parameter, part in zip(parameters, x.split(sizes), strict=True):
                parameter.grad = part.clone()
            optimizer.step()

        return nn.ParameterList(parameters), optimizer, step

    recorded = train_both(make, inputs=lambda i: (normal(i, sum(sizes)),))
    [report] = [report for report in recorded.reports if report.nodes]
    gradients, steps, updates = 2 * 11, 11, 5 * 11
    assert report.sites <= gradients + steps + updates, told(recorded)


def test_graphs_of_the_backend_run_side_by_side_forward_and_backward():
    histories = []
    for overlap in (1, LANES):
        torch.compiler.reset()
        torch.manual_seed(0)
        model = Branches().cuda()
        call = compiled(model, options={"record": overlap > 1, "max_parallel_kernels": overlap}, dynamic=False)
        step = training(call, torch.optim.SGD(model.parameters(), lr=0.1))
        histories.append([everything(step(normal(i, 16, 64), normal(i + 50, 16, 4)), model, None)
                          for i in range(8)])
    for wanted, found in zip(*histories, strict=True):
        assert_same(found, wanted)
    graphs = anabranch.explain(step, normal(0, 16, 64), normal(50, 16, 4)).graphs
    for kind in ("forward", "backward"):
        assert_side_by_side([r for g in graphs if g.kind == kind for r in g.recordings])


def test_named_streams_let_kernels_run_side_by_side():
    chains = Branches(count=2).cuda()

    def function(x):
        with anabranch.stream("side"):
            a = chains.chains[0](x)
        return a + chains.chains[1](x)

    call = compiled(function, dynamic=False)
    plain = torch.compile(function, backend="inductor", dynamic=False)
    with torch.no_grad():
        for i in range(8):
            assert torch.equal(call(normal(i, 16, 64)), plain(normal(i, 16, 64)))
        found = anabranch.explain(call, normal(0, 16, 64))
    assert all(graph.reason is None for graph in found.graphs), found
    assert_side_by_side([report for graph in found.graphs for report in graph.recordings])


def test_memory_that_a_graph_overwrites_is_read_before_and_after_as_written():
    """A cache that is read, written in place, and read again."""
    def function(cache, x):
        before = cache @ x
        cache.add_(x)
        return before, cache @ x, cache.sum(0)

    call = torch.compile(function, dynamic=False)
    step = anabranch.record(call, max_parallel_kernels=LANES)
    mine, theirs = normal(0, 64, 64), normal(0, 64, 64)
    for i in range(20):
        with torch.no_grad():
            found, wanted = step(mine, normal(i, 64, 64)), call(theirs, normal(i, 64, 64))
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True)), i
        assert torch.equal(mine, theirs), i
    assert_launched(step)


def test_launches_beside_other_work_on_the_gpu():
    model = Branches().cuda()
    call = torch.compile(model, dynamic=False)
    step = anabranch.record(call, max_parallel_kernels=LANES)
    other, busy = torch.cuda.Stream(), normal(1, 2048, 2048)
    with torch.no_grad():
        for i in range(60):
            with torch.cuda.stream(other):
                for _ in range(i % 7):
                    busy = (busy @ busy).tanh()
            x = normal(i, 16, 64)
            assert torch.equal(step(x), call(x)), i
    assert_side_by_side(step.reports, LANES)


def test_attention_and_its_gradients():
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True).cuda()
    call = torch.compile(layer, dynamic=False)

    def gradients(x):
        layer.zero_grad(set_to_none=True)
        loss = call(x).square().mean()
        loss.backward()
        return loss.detach()

    step = anabranch.record(gradients, max_parallel_kernels=LANES)
    for i in range(8):
        found = everything(step(normal(i, 4, 32, 64)), layer, None)
        wanted = everything(gradients(normal(i, 4, 32, 64)), layer, None)
        assert_same(found, wanted)
    assert_side_by_side(step.reports)


def test_an_eager_chain_stays_in_order_and_eager_branches_do_not():
    for model, x, least in ((mlp(), batch, 0), (Branches().cuda(), None, 2)):
        step = anabranch.record(model, max_parallel_kernels=LANES)
        with torch.no_grad():
            for i in range(5):
                given = x(i)[0] if x is not None else normal(i, 16, 64)
                assert torch.equal(step(given), model(given))
        assert all(least <= report.lanes for report in step.reports if report.nodes), told(step)
        assert least or all(report.lanes <= 1 for report in step.reports), told(step)


def microbatches_of(model, optimizer, call, to_none):
    def step(x, y):
        optimizer.zero_grad(set_to_none=to_none)
        total = torch.zeros((), device="cuda")
        for a, b in zip(x.chunk(4), y.chunk(4), strict=True):
            loss = nn.functional.mse_loss(call(a), b) / 4
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    return model, optimizer, step


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("make_model", [mlp, lambda: mlp(nn.BatchNorm1d(32)),
                                        lambda: mlp(nn.Dropout(0.5))],
                         ids=["plain", "batch norm", "dropout"])
def test_microbatches_of_a_step_run_side_by_side_with_the_bits_of_those_in_turn(
        make_model, is_compiled):
    def make():
        model = make_model()
        call = torch.compile(model, dynamic=False) if is_compiled else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
        return microbatches_of(model, optimizer, call, to_none=True)

    assert_side_by_side(train_both(make, options={"max_parallel_kernels": LANES}).reports, LANES)


def test_microbatches_add_to_gradients_that_were_set_to_zero():
    def make():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        return microbatches_of(model, optimizer, model, to_none=False)

    assert_side_by_side(train_both(make, options={"max_parallel_kernels": LANES}).reports)


def test_where_memory_is_short_microbatches_take_less_of_it():
    def make():
        model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)))
        optimizer = torch.optim.SGD(model.cuda().parameters(), lr=0.01)
        return microbatches_of(model, optimizer, model, to_none=True)

    def inputs(i):
        return normal(i, 4 * 4096, 64), normal(i + 50, 4 * 4096, 64)

    arenas = []
    for granted in (1 << 22, 1 << 30):
        options = {"max_parallel_kernels": LANES, "parallel_bytes": granted}
        step = train_both(make, inputs=inputs, calls=5, options=options)
        arenas.append(max(report.arena_bytes for report in step.reports))
    assert arenas[0] < arenas[1], told(step)


def test_two_models_of_one_step_run_side_by_side():
    def make():
        models = nn.ModuleList([mlp(), mlp()])
        optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
                      for model in models]

        def step(x, y):
            losses = []
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad(set_to_none=True)
                losses.append(nn.functional.mse_loss(model(x), y))
                losses[-1].backward()
                optimizer.step()
            return [loss.detach() for loss in losses]

        return models, None, step

    assert_side_by_side(train_both(make, options={"max_parallel_kernels": LANES}).reports)


# Lanes that are asked for by name.


def on_named_streams(chains):
    def step(x):
        with anabranch.stream("left"):
            a = chains[0](x)
        with anabranch.stream("right"):
            b = chains[1](x)
        return a + b

    return step


def under_overlap(chains):
    def step(x):
        with anabranch.overlap(lanes=3):
            return chains[0](x) + chains[1](x)

    return step


def on_torchs_streams(chains):
    left, right = torch.cuda.Stream(), torch.cuda.Stream()

    def step(x):
        left.wait_stream(torch.cuda.current_stream())
        right.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(left):
            a = chains[0](x)
        with torch.cuda.stream(right):
            b = chains[1](x)
        torch.cuda.current_stream().wait_stream(left)
        torch.cuda.current_stream().wait_stream(right)
        return a + b

    return step


def recordings_of(call, x, is_compiled):
    if not is_compiled:
        return [report for report in call.reports if report.nodes]
    return [report for graph in anabranch.explain(call, x).graphs for report in graph.recordings
            if report.nodes]


def peak_of(call, x):
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    answer = call(x)
    torch.cuda.synchronize()
    del answer
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("is_compiled", [False, True], ids=["recorded", "compiled"])
@pytest.mark.parametrize("place", [on_named_streams, under_overlap, on_torchs_streams])
def test_what_is_placed_on_streams_has_its_lanes_in_the_plain_steps_memory_and_slack(
        place, is_compiled):
    chains = Branches(count=2, depth=12, width=256).chains.cuda()
    step = place(chains)
    with torch.no_grad(), anabranch.config.patch(parallel_bytes=None):
        call = compiled(step, dynamic=False) if is_compiled else anabranch.record(step)
        plain = torch.compile(on_named_streams(chains), backend="inductor", dynamic=False) \
            if is_compiled else step
        for i in range(8):
            x = normal(i, 64, 256)
            assert torch.equal(call(x), plain(x)), i
        [report] = recordings_of(call, x, is_compiled)
        peak = peak_of(call, x)
    assert report.launched and report.lanes >= 2, str(report)
    is_captured = place is on_torchs_streams and not is_compiled  # as branches
    assert report.asked_lanes == (1 if is_captured else 3), str(report)
    slack = slack_bytes(torch.cuda.current_device()) * report.asked_lanes
    assert report.parallel_bytes <= slack, str(report)
    assert peak <= report.recording.plain + slack, str(report)


def test_torchs_streams_of_a_recorded_step_have_lanes_in_captured_order_too():
    """However few kernels may run side by side that nobody has placed."""
    chains = Branches(count=2, depth=12, width=256).chains.cuda()
    step = on_torchs_streams(chains)
    call = anabranch.record(step, max_parallel_kernels=1)
    with torch.no_grad():
        for i in range(8):
            assert torch.equal(call(normal(i, 64, 256)), step(normal(i, 64, 256))), i
    [report] = [report for report in call.reports if report.nodes]
    assert report.launched and report.lanes == 2 and not report.parallel_bytes, str(report)


@pytest.mark.parametrize("place", [on_named_streams, under_overlap])
def test_where_there_is_no_memory_for_lanes_launches_take_the_plain_steps(place, monkeypatch):
    monkeypatch.setattr(attempt_module, "slack_bytes", lambda device: 0)
    chains = Branches(count=2, depth=12, width=256).chains.cuda()
    step = place(chains)
    with torch.no_grad(), anabranch.config.patch(parallel_bytes=None):
        calls = anabranch.record(step), anabranch.record(step, max_parallel_kernels=1)
        for i in range(8):
            x = normal(i, 64, 256)
            assert all(torch.equal(call(x), step(x)) for call in calls), i
    [report], [ordered] = ([one for one in call.reports if one.nodes] for call in calls)
    assert report.launched and report.asked_lanes == 3, str(report)
    assert report.launch_peak_bytes <= max(report.recording.plain, ordered.launch_peak_bytes), \
        f"{report}\n{ordered}"


def test_streams_that_are_named_in_a_compiled_part_of_a_recorded_step_have_lanes():
    chains = Branches(count=2, depth=12, width=256).chains.cuda()
    with torch.no_grad(), anabranch.config.patch(parallel_bytes=None):
        part = compiled(on_named_streams(chains), dynamic=False)
        call = anabranch.record(lambda x: part(x) * 2)
        for i in range(8):
            x = normal(i, 64, 256)
            assert torch.equal(call(x), part(x) * 2), i
    [report] = [report for report in call.reports if report.nodes]
    assert report.launched and report.asked_lanes == 3 and report.lanes >= 2, str(report)

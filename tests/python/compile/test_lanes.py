# SPDX-License-Identifier: Apache-2.0
"""Where and when regions run changes no bit: threads, delays, and the ladder of switches."""

import copy
import functools

import pytest
import torch
from compare import Tolerance, assert_same, compiled, observe, weighted_sum
from zoo import ZOO, Towers, normal

import anabranch
from anabranch._core.program import Plan

pytestmark = [pytest.mark.own, pytest.mark.usefixtures("keep_compiled")]
DETERMINISTIC = [name for name in ZOO if name != "dropout"]  # that one has its own test below
DELAY_SEEDS = range(1, 6)


@pytest.fixture(autouse=True)
def one_thread_an_operator():
    """A lone lane has all of the threads for itself, and library operators add up in another order
    with more of them; here only the order of regions shall differ."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def module_of(name):
    """And its state at the beginning."""
    torch.manual_seed(1)
    module = ZOO[name].make(True).train()
    return module, copy.deepcopy(module.state_dict())


@functools.cache
def call_of(name, **options):
    return compiled(module_of(name)[0], options={"strict": name != "spectrum", **options})


AT_LAUNCH = ("native_regions", "max_threads", "spin_us", "delay_seed")


def runs(name, *option_sets, calls=2):
    """The same calls of one model, each set of options from the same beginning. It is compiled once
    for all sets that differ only in what a launch obeys."""
    case, (model, begin), found = ZOO[name], module_of(name), []
    for options in option_sets:
        fixed = {key: value for key, value in options.items() if key not in AT_LAUNCH}
        function = call_of(name, **fixed)
        model.load_state_dict(begin)
        launched = {key: value for key, value in options.items() if key in AT_LAUNCH}
        with anabranch.config.patch(**launched):
            found.append([observe(function, model, case.inputs(seed), seed=seed)
                          for seed in range(calls)])
    return zip(*found)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.oldest if name in ("encoder", "towers") else ())
    for name in ZOO if name != "spectrum"])
def test_annotated_modules_do_run_on_several_streams(name):
    """Else every other test here would compare one stream with itself."""
    call, given = call_of(name), ZOO[name].inputs(0)
    told = anabranch.explain(lambda: weighted_sum(call(*given)).backward())
    forward = told.graphs[0]
    assert forward.reason is None and forward.streamed is not None, str(told)
    assert len({report.stream for report in forward.streamed.last.reports}) > 1, str(told)


@pytest.mark.oldest
def test_priorities_reach_the_plans_of_forward_and_backward(tmp_path):
    def model(x):
        with anabranch.stream("calm"):
            a = torch.tanh(x @ x)
        with anabranch.stream("urgent", priority=-1):
            b = torch.tanh(x.t() @ x)
        return a + b

    call = compiled(model, options={"strict": True})
    told = anabranch.explain(lambda: call(torch.eye(4).requires_grad_()).sum().backward())
    assert torch.equal(call(torch.eye(4)), model(torch.eye(4)))
    paths = told.save_plan(tmp_path / "it.plan")
    programs = [Plan.from_bytes(path.read_bytes()).program for path in paths]
    assert len(programs) == 2
    for program in programs:
        found = dict(zip(program.streams, program.priorities, strict=True))
        assert found == {"ambient": 0, "calm": 0, "urgent": -1}


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.oldest if name in ("cnn", "writer") else ())
    for name in DETERMINISTIC])
def test_two_lanes_give_the_bits_of_one(name):
    for one, two in runs(name, {"max_threads": 1}, {"max_threads": 2}):
        assert_same(two, one)


def test_dropout_draws_the_same_numbers_on_one_lane_and_on_two():
    for one, two in runs("dropout", {"max_threads": 1}, {"max_threads": 2}):
        assert_same(two, one)


@pytest.mark.parametrize("name", ["cnn", "encoder", "decoder", "experts", "towers", "writer"])
def test_random_delays_change_no_bit(name):
    settings = [{"max_threads": 1}, *({"delay_seed": seed} for seed in DELAY_SEEDS)]
    for undelayed, *delayed in runs(name, *settings):
        for found in delayed:
            assert_same(found, undelayed)


@pytest.mark.oldest
def test_delays_asked_for_in_the_environment_change_no_bit(monkeypatch):
    (plain,), = runs("towers", {}, calls=1)
    monkeypatch.setenv("ANABRANCH_DELAY_SEED", "7")
    torch.compiler.reset()
    (delayed,), = runs("towers", {}, calls=1)
    assert_same(delayed, plain)


@pytest.mark.parametrize("options", [{"streams": False}, {"native_regions": False}, {"spin_us": 0},
                                     {"streams": False, "native_regions": False}], ids=str)
@pytest.mark.parametrize("name", ["cnn", "towers", "writer"])
def test_every_switch_leaves_results_as_they_are(name, options):
    tolerance = Tolerance(1e-5, 1e-5)
    for usual, switched in runs(name, {}, options):
        assert_same(switched, usual, tolerance)


def test_options_of_a_launch_are_obeyed_by_what_is_compiled_already():
    call = compiled(Towers(True, width=32).eval(), options={"spin_us": 0})
    x = normal(3, 16, 32)
    answers = []
    with torch.no_grad():
        answers.append(call(x))
        with anabranch.config.patch(native_regions=False, max_threads=1, spin_us=300):
            told = anabranch.explain(lambda: answers.append(call(x)))
        answers.append(call(x))
    streamed = told.graphs[0].streamed
    assert {report.reason for report in streamed.last.reports} == {"native_regions=False"}
    assert [options[:3] for options, _ in streamed._pools] == [(True, None, 0), (False, 1, 0)]
    assert torch.equal(answers[0], answers[2])
    torch.testing.assert_close(answers[1], answers[0])


def test_strict_compiles_what_needs_no_fallback():
    for strict, usual in runs("encoder", {"strict": True}, {"strict": False}):
        assert_same(strict, usual)


def test_many_launches_in_a_row_agree_bit_for_bit():
    """A race that timing hides once shows in some of three hundred launches."""
    model = Towers(True, width=32).eval()
    call = compiled(model, options={"max_threads": 2})
    x = normal(3, 16, 32)
    with torch.no_grad():
        first = call(x)
        assert all(torch.equal(call(x), first) for _ in range(300))

# SPDX-License-Identifier: Apache-2.0
"""The benchmark suite's results: rows are merged over runs, and the table tells what there is."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

SUITE = Path(__file__).resolve().parents[3] / "bench" / "suite"
HEAD = {"list": "timm", "model": "some", "kind": "training", "device": "cuda"}


@pytest.fixture
def suite(monkeypatch):
    """Imports a module of the suite, which is gone again after the test. Another module may have its
    name, of what tests share."""
    monkeypatch.syspath_prepend(str(SUITE))
    for path in SUITE.glob("*.py"):
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(SUITE)):
            del sys.modules[name]


def row(ms, passed=True, memory=100, **more):
    return {"batch": 8, "precision": "amp", "ms": ms, "until_fast_s": 2.0,
            "accuracy": {"passed": passed, "by": "float64", "first_wrong": "loss"},
            "memory": {"allocated": memory, "reserved": memory}, **more}


def failed(message):
    return {"batch": 8, "precision": "amp", "error": {"stage": "calls", "message": message}}


def kept(model, **rows):
    return {**HEAD, "model": model, "rows": {name.replace("_", "-"): found
                                             for name, found in rows.items()}}


def test_a_newer_row_replaces_that_of_its_mode_alone(suite, tmp_path):
    results = suite("results")
    path = results.path_of(tmp_path, "timm", "training", "some")
    results.merge(path, HEAD, "eager", row(4.0), {"commit": "a"})
    results.merge(path, HEAD, "record", row(2.0), {"commit": "a"})
    results.merge(path, HEAD, "record", row(1.0), {"commit": "b"})
    (found,) = results.load(tmp_path)
    assert {mode: each["ms"] for mode, each in found["rows"].items()} == {
        "eager": 4.0, "record": 1.0}
    assert found["runs"][found["rows"]["eager"]["run"]] == {"commit": "a"}
    assert found["runs"][found["rows"]["record"]["run"]] == {"commit": "b"}
    assert not list(tmp_path.rglob("*.part"))


def test_a_run_of_which_no_row_is_left_is_forgotten(suite, tmp_path):
    results = suite("results")
    path = tmp_path / "timm-training" / "some.json"
    for commit in "abc":
        results.merge(path, HEAD, "eager", row(4.0), {"commit": commit})
    assert list(json.loads(path.read_text())["runs"].values()) == [{"commit": "c"}]


def test_cold_seconds_stay_until_they_are_measured_anew(suite, tmp_path):
    results = suite("results")
    path = tmp_path / "timm-training" / "some.json"
    results.merge(path, HEAD, "compile", row(4.0, cold={"until_fast_s": 50.0}), {})
    results.merge(path, HEAD, "compile", row(3.0), {})
    assert json.loads(path.read_text())["rows"]["compile"]["cold"] == {"until_fast_s": 50.0}
    results.merge(path, HEAD, "compile", failed("no memory"), {})
    assert "cold" not in json.loads(path.read_text())["rows"]["compile"]


def test_a_row_that_was_not_timed_keeps_the_time_and_says_of_which_run(suite, tmp_path):
    results = suite("results")
    path = tmp_path / "timm-training" / "some.json"
    untimed = {name: value for name, value in row(0.0).items() if name != "ms"}
    results.merge(path, HEAD, "record", row(4.0), {"commit": "a"})
    for commit in "bc":
        results.merge(path, HEAD, "record", {**untimed, "memory": commit}, {"commit": commit})
    found = json.loads(path.read_text())
    kept = found["rows"]["record"]
    assert (kept["ms"], kept["memory"]) == (4.0, "c")
    assert found["runs"][kept["timed_in"]] == {"commit": "a"}
    assert found["runs"][kept["run"]] == {"commit": "c"} and len(found["runs"]) == 2
    results.merge(path, HEAD, "record", row(3.0), {"commit": "d"})
    assert "timed_in" not in json.loads(path.read_text())["rows"]["record"]


def test_what_ran_out_of_memory_beside_others_is_run_once_more_by_itself(suite, monkeypatch):
    processes, begun = suite("processes"), []
    by_cosine = row(1.0)
    by_cosine["accuracy"]["by"] = "cosine (OutOfMemoryError: CUDA out of memory)"
    rows = {"fits": row(1.0), "large": failed("OutOfMemoryError: CUDA out of memory"),
            "judged": by_cosine, "breaks": failed("RuntimeError: no")}

    def run(context, tasks, at_once, may_start):
        for task in tasks:
            if may_start():
                begun.append((task, at_once))
                yield task, rows[task] if at_once > 1 else row(2.0)

    monkeypatch.setattr(processes, "_run_side_by_side", run)
    found = dict(processes.run_all(None, list(rows), 4))
    assert begun[4:] == [("large", 1), ("judged", 1)] and found.keys() == rows.keys()
    assert found["large"]["ms"] == found["judged"]["ms"] == 2.0 and "error" in found["breaks"]
    may = iter([True] * 4 + [False] * 4)
    found = dict(processes.run_all(None, list(rows), 4, lambda: next(may)))
    assert found.keys() == {"fits", "breaks"}  # what was not run again is missing


def test_other_batches_and_precisions_are_other_files(suite, tmp_path):
    results = suite("results")
    folders = {results.folder_of(tmp_path, device, batch, precision)
               for device in ("cuda", "cpu") for batch in ("own", "1")
               for precision in ("own", "float32")}
    assert len(folders) == 8


def test_ratios_are_over_models_that_are_right_in_both(suite):
    table = suite("table")
    files = [kept("fast", compile=row(4.0), record=row(2.0)),
             kept("wrong", compile=row(4.0), record=row(1.0, passed=False)),
             kept("fails", compile=failed("no"), record=row(1.0)),
             kept("alone", record=row(1.0)),
             kept("even", compile=row(4.0), record=row(8.0))]
    assert table.ratios(files, "record", "compile") == [2.0, 0.5]
    assert table.geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    assert table.worse([2.0, 0.5, 0.98, 0.979]) == "2 of 4"


def test_times_of_one_process_come_before_those_of_several(suite):
    table = suite("table")
    judged = {name: found for name, found in row(0.0).items() if name != "ms"}
    together = {"ms": {"eager": 8.0, "compile": 4.0, "record": 2.0}}
    both = kept("both", compile=row(9.0), record=row(1.0), together=together)
    untimed = kept("untimed", eager=judged, compile=judged, record=judged, together=together)
    assert table.ratios([both, untimed], "record", "compile") == [2.0, 2.0]
    assert table.ratios([kept("not timed", compile=judged, record=row(1.0))],
                        "record", "compile") == []
    assert "| both, training | 8 | - | 4.000 | - | - | 2.000 |" in table.models([both])
    assert "| untimed, training | 8 | 8.000 | 4.000 | - | - | 2.000 |" in table.models([untimed])


def test_seconds_of_processes_alone_come_before_those_beside_others(suite):
    table = suite("table")
    alone = {"batch": 8, "until_fast_s": {"reduce-overhead": 4.0, "record": 2.0},
             "cold": {"until_fast_s": {"record": 20.0}}}
    found = kept("some", reduce_overhead=row(1.0, is_warm=True), record=row(1.0), alone=alone)
    assert [table.warm(found, mode) for mode in ("reduce-overhead", "record")] == [4.0, 2.0]
    assert [table.cold(found, mode) for mode in ("reduce-overhead", "record")] == [None, 20.0]
    assert table.until_fast_ratio([found, kept("none", record=row(1.0))], "record",
                                  "reduce-overhead") == 0.5


def test_what_was_only_timed_has_the_verdict_on_a_small_batch(suite):
    table, results = suite("table"), suite("results")
    together = {"batch": 128, "ms": {"compile": 4.0, "record": 2.0, "anabranch": 3.0}}
    small = kept("some", compile=row(1.0), record=row(1.0), anabranch=row(1.0, passed=False))
    (found,) = results.with_verdicts([kept("some", together=together)], [small])
    assert table.ratios([found], "record", "compile") == [2.0]
    assert table.ratios([found], "anabranch", "compile") == []
    assert table.memory_ratios([found], "record", "allocated") == []
    (found,) = results.with_verdicts([kept("some", together=together)], [])
    assert table.ratios([found], "record", "compile") == []


def test_a_table_has_a_line_a_model_and_sums_a_mode(suite):
    table = suite("table")
    files = [kept("one", eager=row(8.0), compile=row(4.0, memory=200),
                  reduce_overhead=row(3.0), record=row(2.0, is_warm=True)),
             kept("two", eager=row(8.0), compile=row(4.0), record=failed("no | memory"))]
    page = table.page(files)
    assert "| timm, training, record | 1 of 2 | 4.000 | 2.000 | 1.500 | 0 of 1 |" in page
    assert "| 0.500 | 0.500 | 2.0 | - |" in page
    assert "| one, training | 8 | 8.000 | 4.000 | 3.000 | - | 2.000 |" in page
    assert "| two, training | 8 | 8.000 | 4.000 | - | - | fails |" in page
    assert "- timm two, training, record: calls: no / memory" in page


def test_a_failure_under_torch_compile_is_not_ours(suite):
    table = suite("table")
    failures = table.failures([
        kept("theirs", eager=row(1.0), compile=failed("x"), record=failed("x")),
        kept("ours", eager=row(1.0), compile=row(1.0), record=row(1.0, passed=False)),
        kept("nobody", eager=failed("no such class"))])
    assert [len(failures[name]) for name in ("eager", "compile", "reduce-overhead", "ours")] \
        == [1, 2, 0, 1]
    assert failures["ours"] == ["timm ours, training, record: wrong: loss, by float64"]


def test_reasons_stand_once_with_their_models(suite):
    table = suite("table")
    told = {"recordings": {"recorded": 0, "plain": ["it draws random numbers on the CPU"]}}
    assert table.reasons([kept("one", record=row(1.0, **told)),
                          kept("two", record=row(1.0, **told), anabranch=row(1.0, **told))]) == [
        "it draws random numbers on the CPU: one (training, record), "
        "two (training, anabranch), two (training, record)"]
    assert table.page([kept("one", record=row(1.0))]).count("Run plainly") == 0


def test_a_table_that_a_model_makes_for_itself_is_not_put_back(suite):
    model = torch.nn.BatchNorm1d(2)
    model.register_buffer("table", torch.zeros(1))
    state = suite("measure").State(model)
    model.running_mean += 1
    model.table = torch.arange(4.0)
    state.put_back()
    assert torch.equal(model.running_mean, torch.zeros(2))
    assert torch.equal(model.table, torch.arange(4.0))


def test_the_lists_have_the_names_of_the_benchmark(suite):
    lists = suite("lists")
    assert {name: len(entries) for name, entries in lists.LISTS.items()} == {
        "hf": 46, "timm": 61, "torchbench": 11}
    assert lists.LISTS["hf"]["MobileBertForMaskedLM"].batch == 128
    assert lists.LISTS["timm"]["cait_m36_384"].batch == 1
    known = {name for entries in lists.LISTS.values() for name in entries}
    assert known >= {*lists.CPU_SUBSET, *lists.HF_TRAINING, *lists.HF_INFERENCE,
                     *lists.TIMM_TRAINING, *lists.TORCHBENCH_LOOSE, *lists.SCALED_LOSS,
                     *lists.LOOSE_SMALL_TENSORS, *lists.AUTOCAST_ALWAYS}
    assert not known & {name for apart in lists.APART.values() for name in apart}

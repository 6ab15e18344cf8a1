# SPDX-License-Identifier: Apache-2.0
"""The doctor's self-tests say OK, or what failed, whatever happens to them."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch

import anabranch
from anabranch import _self_test, doctor

pytestmark = pytest.mark.oldest


def test_the_tests_are_those_that_the_doctor_names():
    assert tuple(_self_test.TESTS) == doctor.SELF_TESTS


def test_each_test_has_a_line_with_its_seconds(capfd):
    status = doctor.main(["--test", "--json"])
    told = json.loads(capfd.readouterr().out)
    rows = {name: told[f"test of {name}"]["detail"] for name in doctor.SELF_TESTS}
    assert all(rows[name].startswith("OK, ") for name in ("torch", "compiler", "streams")), rows
    if not torch.cuda.is_available():
        assert rows["recording"] == "not run: torch finds no GPU"
    assert status == 0


def test_at_the_limit_what_runs_has_failed_and_the_rest_is_not_run():
    first, *rest = doctor.run_self_tests(limit_s=0.01)
    assert first[:2] == ("torch", "FAILED") and "limit of 0.01 s" in first.found
    assert [row[1:] for row in rest] == [("not run", 0.0, "see torch")] * 4


@pytest.fixture
def fake_torch(monkeypatch, tmp_path):
    """Writes the torch that another process will import."""
    def write(text):
        (tmp_path / "torch.py").write_text(text)
        info = tmp_path / "torch-2.15.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.15.0\n")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    return write


def test_a_crash_is_a_line_with_its_signal(fake_torch):
    fake_torch("import os\nos.abort()\n")
    first, *rest = doctor.run_self_tests()
    assert first[:2] == ("torch", "FAILED") and "SIGABRT" in first.found
    assert {row.became for row in rest} == {"not run"}


def test_an_exception_is_a_line_and_the_other_tests_run(fake_torch, capfd):
    fake_torch("print('noise')\nraise RuntimeError('libc10.so is broken\\nmore')\n")
    first, second, *_ = doctor.run_self_tests()
    assert first[:2] == ("torch", "FAILED")
    assert first.found == "RuntimeError: libc10.so is broken"
    assert second[:2] == ("compiler", "OK")
    assert doctor.main(["--test"]) == 1
    out, err = capfd.readouterr()
    assert "FAILED" in out and "-> off: torch.compile" in out and "Traceback" not in out + err


def test_a_python_that_cannot_be_started_is_told(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "no other Python can be started" in doctor.run_self_tests()[0].found


def test_a_compiler_that_fails_is_told_by_its_first_error(monkeypatch, tmp_path):
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho 'In file x'\necho 'fatal error: omp.h: No such file'\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert _self_test.run("compiler")[1::2] == (
        "FAILED", "RuntimeError: fatal error: omp.h: No such file")
    monkeypatch.setenv("CXX", "/nowhere/g++")
    assert _self_test.run("compiler")[1::2] == ("not run", "there is no C++ compiler")


def test_without_torch_what_needs_it_is_not_run(monkeypatch):
    monkeypatch.setattr(doctor, "installed_torch", lambda: None)
    for name in ("torch", "streams", "recording"):
        assert _self_test.run(name)[1::2] == ("not run", "torch is not installed")


@pytest.fixture
def recorded(monkeypatch):
    """Stands for ``anabranch.record``: what a launch answers is off by so much."""
    def stand_in(off):
        def record(step, strict):
            def launch(x):
                launch.reports[0].launched += 1
                return step(x) + off

            launch.reports = [SimpleNamespace(launched=0)]
            return launch

        monkeypatch.setattr(anabranch, "record", record)

    return stand_in


def test_a_recorded_step_is_compared_with_a_plain_one(recorded):
    recorded(off=0)
    assert _self_test.train_recorded("cpu") == (
        "a training step launched 6 times has the losses of eager")


def test_a_launch_with_another_result_fails(recorded):
    recorded(off=0.01)
    with pytest.raises(AssertionError, match="not close"):
        _self_test.train_recorded("cpu")


@pytest.mark.filterwarnings("ignore::anabranch.RecordWarning")
def test_a_step_that_is_never_launched_fails():
    with pytest.raises(RuntimeError, match="no call was launched"):
        _self_test.train_recorded("cpu")

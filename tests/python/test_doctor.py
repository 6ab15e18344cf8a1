# SPDX-License-Identifier: Apache-2.0
"""The doctor finds what is there and names what is off."""

import pytest

from anabranch import doctor


def finding(name):
    return next(row for row in doctor.findings() if row.name == name)


def test_the_report_has_a_line_for_everything_a_bug_report_needs():
    report = doctor.report()
    for name in ("anabranch", "python", "torch", "C++ compiler", "native library", "cores"):
        assert f"\n{name} " in f"\n{report}"


def test_what_is_off_is_followed_by_its_reason(monkeypatch):
    monkeypatch.setenv("ANABRANCH_STREAMS", "off")
    assert finding("streams").off == "switched off by an option"
    assert "-> off: switched off by an option" in doctor.report()


def test_a_missing_compiler_switches_compiling_off(monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/g++")
    assert "E0605" in finding("C++ compiler").off


def test_a_compiler_that_does_not_run_is_told(monkeypatch, tmp_path):
    broken = tmp_path / "g++"
    broken.write_text("not a program")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    row = finding("C++ compiler")
    assert str(broken) in row.text and row.off


@pytest.mark.parametrize("version, supported", [("2.10.1", False), ("2.9.0+cu128", False),
                                                ("2.11.0", True), ("2.15.0+cpu", True),
                                                ("2.16.0a0+git1234", True), ("3.0.0", True)])
def test_supported_torch_versions(monkeypatch, version, supported):
    monkeypatch.setattr(doctor, "installed_torch", lambda: version)
    row = finding("torch")
    assert version in row.text and "2.11" in row.text
    assert (row.off == "") == supported


def test_a_missing_torch_is_a_normal_state(monkeypatch):
    monkeypatch.setattr(doctor, "installed_torch", lambda: None)
    assert "E0604" in finding("torch").off


@pytest.mark.parametrize("content", [None, b"no library"], ids=["missing", "broken"])
def test_a_library_that_cannot_be_loaded_is_told_with_its_path(run_python, tmp_path, content):
    library = tmp_path / "other.so"
    if content is not None:
        library.write_bytes(content)
    told = run_python("from anabranch import doctor; print(doctor.report())",
                      ANABRANCH_LIBRARY=str(library))
    assert told.returncode == 0 and "E0606" in told.stdout and str(library) in told.stdout, told


def test_a_wrong_option_is_reported_and_does_not_stop_the_report(monkeypatch):
    monkeypatch.setenv("ANABRANCH_SPIN_US", "fast")
    assert "E0702" in finding("options").text
    assert "C++ compiler" in doctor.report()


def test_a_misspelt_variable_is_named(monkeypatch):
    monkeypatch.setenv("ANABRANCH_STRCIT", "1")
    assert finding("ANABRANCH_STRCIT").off

# SPDX-License-Identifier: Apache-2.0
"""The doctor finds what is there and names what is off."""

import json

import pytest

from anabranch import __main__ as command
from anabranch import doctor
from anabranch._core import capture, device
from anabranch._core.device import CudaFacts
from anabranch.errors import AnabranchError


def finding(name):
    return next(row for row in doctor.findings() if row.name == name)


def test_the_report_has_a_line_for_everything_a_bug_report_needs():
    report = doctor.report()
    for name in ("anabranch", "python", "torch", "C++ compiler", "native library", "cores",
                 "CUDA driver", "recording"):
        assert f"\n{name} " in f"\n{report}"


def test_what_is_off_is_followed_by_its_reason(monkeypatch):
    monkeypatch.setenv("ANABRANCH_STREAMS", "off")
    assert finding("streams").off == "switched off by an option"
    assert "-> off: switched off by an option" in doctor.report()


@pytest.fixture
def core_command(monkeypatch, tmp_path):
    """Stands for the C++ command, which need not be built here."""
    path = tmp_path / "anabranch"
    path.write_text("""#!/bin/sh
[ "$*" = "doctor --json" ] || { echo "not expected: $*" >&2; exit 2; }
echo '{"device host": {"on": true, "detail": "2 cores"}, "cores": {"on": false, "detail": "?"}}'
""")
    path.chmod(0o755)
    monkeypatch.setattr(command, "find_command", lambda: path)


def test_json_goes_to_the_output_alone(capfd, core_command):
    assert doctor.main(["--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told == doctor.as_json() and told["cores"]["on"] == (doctor.core_count() > 1)
    assert command.main(["doctor", "--json"]) == 0
    both = json.loads(capfd.readouterr().out)
    assert both == {**told, "device host": {"on": True, "detail": "2 cores"}}


def test_the_report_holds_nothing_private(run_python, tmp_path):
    home = tmp_path / "home of alice"
    (home / "secret project").mkdir(parents=True)
    compiler = home / "secret project" / "g++"
    compiler.write_text("#!/bin/sh\necho 'g++ 12.2.0'\n")
    compiler.chmod(0o755)
    told = run_python("from anabranch import doctor; print(doctor.report())", HOME=str(home),
                      LOGNAME="alice7", CXX=str(compiler), API_TOKEN="token-1234",
                      ANABRANCH_LIBRARY_PATH=str(home / "of alice7.so"))
    assert "g++: g++ 12.2.0" in told.stdout and "~/of <user>.so" in told.stdout, told
    for private in (str(tmp_path), "secret project", "alice7", "token-1234"):
        assert private not in told.stdout


def test_json_says_what_is_off(monkeypatch):
    monkeypatch.setenv("ANABRANCH_STREAMS", "off")
    assert doctor.as_json()["streams"] == {"on": False, "detail": "off",
                                           "off": "switched off by an option"}


def test_json_comes_also_where_the_command_is_missing(capfd, monkeypatch):
    monkeypatch.setattr(command.os, "access", lambda *arguments: False)
    assert command.main(["doctor", "--json"]) == 1
    out, err = capfd.readouterr()
    assert "torch" in json.loads(out) and "[E0606]" in err


def test_a_wrong_command_line_prints_no_report(capfd, core_command):
    assert doctor.main(["--jsn"]) == 2 and command.main(["doctor", "--jsn"]) == 2
    out, err = capfd.readouterr()
    assert out == "" and "usage" in err and "--jsn" in err


def test_the_package_has_it_as_an_attribute(run_python):
    told = run_python("import sys, anabranch; anabranch.doctor.report(); print('torch' in "
                      "sys.modules)")
    assert told.stdout.strip() == "False", told


def test_a_missing_compiler_switches_compiling_off(monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/g++")
    assert "E0605" in finding("C++ compiler").off


def test_a_compiler_that_does_not_run_is_told(monkeypatch, tmp_path):
    broken = tmp_path / "g++"
    broken.write_text("not a program")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    row = finding("C++ compiler")
    assert row.text.startswith("g++: does not run") and row.off


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
def test_a_library_that_cannot_be_loaded_is_told_with_its_name(run_python, tmp_path, content):
    library = tmp_path / "other.so"
    if content is not None:
        library.write_bytes(content)
    told = run_python("from anabranch import doctor; print(doctor.report())",
                      ANABRANCH_LIBRARY_PATH=str(library))
    assert told.returncode == 0 and "E0606" in told.stdout and library.name in told.stdout, told


def test_a_wrong_option_is_reported_and_does_not_stop_the_report(monkeypatch):
    monkeypatch.setenv("ANABRANCH_SPIN_US", "fast")
    assert "E0702" in finding("options").text
    assert "C++ compiler" in doctor.report()


def test_a_misspelt_variable_is_named(monkeypatch):
    monkeypatch.setenv("ANABRANCH_STRCIT", "1")
    assert finding("ANABRANCH_STRCIT").off


class Facts:
    """A machine with CUDA, as the core would describe it."""

    driver_version = 12040
    features = {"core": "", "edge data": "", "tensor maps": "the driver has no cuTensorMap"}
    gpus = ["NVIDIA H200, 139 GiB", "NVIDIA H200, 139 GiB"]
    why_no_gpus = ""


class CaptureDevice:
    why_no_device_code = ""
    why_tensor_maps_are_opaque = ""

    def __init__(self, ordinal):
        assert ordinal == 0


class CaptureMemory:
    def __init__(self, device):
        pass

    def allocate(self, size_bytes):
        return 1 << 20

    def close(self):
        pass


@pytest.fixture
def machine(monkeypatch):
    """One on which everything is as it should be; answers the monkeypatch, to break it."""
    monkeypatch.setattr(device, "CudaFacts", Facts)
    monkeypatch.setattr(capture, "CaptureDevice", CaptureDevice)
    monkeypatch.setattr(capture, "CaptureMemory", CaptureMemory)
    monkeypatch.setattr(doctor, "installed_torch", lambda: "2.11.0")
    monkeypatch.setattr(doctor, "torch_has_cuda", lambda: True)
    return monkeypatch


def fails(*arguments):
    raise AnabranchError(307, "record: cuMemCreate answered CUDA_ERROR_OUT_OF_MEMORY (2)")


def test_driver_gpus_and_recording_are_told(machine):
    assert finding("CUDA driver").text == "for CUDA 12.4"
    assert finding("GPU 1").text == "NVIDIA H200, 139 GiB"
    assert finding("device code") == doctor.Finding("device code", "loaded")
    assert not finding("capture memory").off and not finding("recording").off


def test_only_features_of_the_driver_that_are_off_have_a_line_with_the_reason(machine):
    rows = [row for row in doctor.findings() if row.name in ("CUDA edge data", "CUDA tensor maps")]
    assert [row.name for row in rows] == ["CUDA tensor maps"]
    assert rows[0].text == "the driver has no cuTensorMap" and rows[0].off


def test_without_device_code_recording_is_still_on(machine):
    machine.setattr(CaptureDevice, "why_no_device_code", "the library was built without nvcc.")
    row = finding("device code")
    assert "nvcc" in row.text and "the host sets them" in row.off
    assert not finding("recording").off


def test_tensor_maps_of_an_unknown_format_are_told_and_recording_is_still_on(machine):
    assert not finding("tensor maps").off
    machine.setattr(CaptureDevice, "why_tensor_maps_are_opaque", "maps of rank 2 differ in more")
    assert "rank 2" in finding("tensor maps").text and finding("tensor maps").off
    assert not finding("recording").off


@pytest.mark.parametrize("part, name", [("CaptureDevice.__init__", "capture device"),
                                        ("CaptureMemory.allocate", "capture memory")])
def test_a_gpu_on_which_nothing_can_be_captured_is_told(machine, part, name):
    owner, method = part.split(".")
    machine.setattr(globals()[owner], method, fails)
    assert "CUDA_ERROR_OUT_OF_MEMORY" in finding(name).text
    assert f"see {name}" in finding("recording").off


def test_a_driver_without_a_gpu_switches_recording_off(machine):
    machine.setattr(Facts, "gpus", [])
    machine.setattr(Facts, "why_no_gpus", "record: cuInit answered CUDA_ERROR_NO_DEVICE (100)")
    assert "cuInit" in finding("GPU").text and "see GPU" in finding("recording").off


def test_a_missing_driver_switches_recording_off(machine):
    machine.setattr(device, "CudaFacts", fails)
    assert "E0307" in finding("CUDA driver").text
    assert "see CUDA driver" in finding("recording").off


@pytest.mark.parametrize("version, why", [("2.11.0", "without CUDA"), (None, "not installed")])
def test_recording_needs_a_torch_with_cuda(machine, version, why):
    machine.setattr(doctor, "torch_has_cuda", lambda: False)
    machine.setattr(doctor, "installed_torch", lambda: version)
    assert why in finding("recording").off


def test_recording_switched_off_is_told(machine):
    machine.setenv("ANABRANCH_RECORD", "0")
    assert "switched off by an option" in finding("recording").off


def test_what_this_machine_has_for_cuda_is_found_out_without_torch(run_python):
    told = run_python("import sys; from anabranch import doctor; print(doctor.report());"
                      "assert 'torch' not in sys.modules")
    assert told.returncode == 0 and "CUDA driver" in told.stdout, told
    if "GPU 0" not in told.stdout:
        assert "recording on a GPU" in told.stdout, told


def test_the_core_describes_cuda_or_says_why_not():
    try:
        facts = CudaFacts()
    except AnabranchError as error:
        assert error.code in (305, 306)
        return
    assert facts.driver_version >= 12000 and facts.features["core"] == ""
    assert bool(facts.gpus) != bool(facts.why_no_gpus)

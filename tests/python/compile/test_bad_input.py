# SPDX-License-Identifier: Apache-2.0
"""Wrong names, wrong values and missing parts: a clear error with a code, and nothing half done."""

import pytest
import torch
from compare import compiled
from zoo import Towers, normal

import anabranch

pytestmark = pytest.mark.own


def assert_refused(options, *words):
    model = Towers(True)
    with pytest.raises(Exception) as caught:
        compiled(model, options=options)(normal(1, 3, 8))
    for word in words:
        assert word in str(caught.value)
    torch.compiler.reset()
    x = normal(1, 3, 8)
    torch.testing.assert_close(compiled(model)(x), model(x))  # the next compile is unharmed


@pytest.mark.oldest
def test_an_unknown_option_names_the_nearest():
    assert_refused({"strem": True}, "'strem'", "streams", "E0701")


def test_an_option_of_the_wrong_type_names_both_types():
    assert_refused({"max_threads": "two"}, "'two'", "str", "int | None", "E0702")


def test_an_option_out_of_range_names_value_and_bound():
    assert_refused({"max_threads": 0}, "max_threads", "0", "1", "E0703")


def test_a_variable_of_the_wrong_type_names_the_variable(monkeypatch):
    monkeypatch.setenv("ANABRANCH_MAX_THREADS", "many")
    with pytest.raises(Exception, match="(?s)ANABRANCH_MAX_THREADS.*'many'.*E0702"):
        compiled(Towers(True))(normal(1, 3, 8))


def test_a_mode_of_inductor_is_refused_by_name():
    call = torch.compile(Towers(True), backend=anabranch.backend, mode="max-autotune")
    with pytest.raises(Exception, match="(?s)max-autotune.*E0704"):
        call(normal(1, 3, 8))


@pytest.mark.parametrize("name", [3, None, b"a", ""], ids=repr)
@pytest.mark.oldest
def test_a_stream_name_that_is_no_string_is_refused_in_eager(name):
    with pytest.raises(anabranch.errors.CompileError, match="E0601") as caught:
        anabranch.stream(name)
    assert repr(name) in str(caught.value)


def test_a_stream_name_that_is_no_string_is_refused_when_compiled():
    def model(x):
        with anabranch.stream(3):
            return x + 1

    with pytest.raises(anabranch.errors.CompileError, match="E0601"):
        compiled(model)(normal(1, 3))


@pytest.mark.parametrize("priority", ["high", 1.0, True, None, 1 << 31], ids=repr)
def test_a_priority_that_is_no_whole_number_is_refused(priority):
    with pytest.raises(anabranch.errors.CompileError, match="E0608") as caught:
        anabranch.stream("side", priority=priority)
    assert repr(priority) in str(caught.value)


def test_one_name_with_two_priorities_is_refused():
    def model(x):
        with anabranch.stream("side", priority=-1):
            y = x + 1
        with anabranch.stream("side"):
            return y * 2

    place = r"test_bad_input\.py:\d+"
    words = rf"(?s)'side' has the priority -1 at {place}, and 0 at {place}\..*E0608"
    with pytest.raises(Exception, match=words):
        compiled(model)(normal(1, 3))


def test_a_graph_that_cannot_be_split_falls_back_or_is_refused_when_strict():
    """Whether complex numbers fall back is the compiler's choice; that strict says so is not."""
    from zoo import ZOO

    case = ZOO["spectrum"]
    model = case.make(True)
    (x,) = case.inputs(1)
    falls_back = any(graph.reason for graph in anabranch.explain(compiled(model), x).graphs)
    torch.compiler.reset()
    if not falls_back:
        compiled(model, options={"strict": True})(x)
        return
    with pytest.raises(Exception, match="E0607"):
        compiled(model, options={"strict": True})(x)


OLD_TORCH = """
import torch
torch.__version__ = type(torch.__version__)("2.10.1+cpu")
import anabranch
try:
    anabranch.backend
except anabranch.errors.CompileError as error:
    print(error)
"""


@pytest.mark.oldest
def test_a_torch_older_than_supported_is_refused_with_both_versions(run_python):
    told = run_python(OLD_TORCH)
    assert all(word in told.stdout for word in ("2.10.1", "2.11", "E0603")), told


NO_COMPILER = """
import os
import anabranch, torch
from torch._inductor import config
def model(x):
    with anabranch.stream("a"):
        y = x.sin() * 2
    with anabranch.stream("b"):
        z = x.cos() * 3
    return y + z
def try_it():
    torch.compiler.reset()
    try:
        torch.compile(model, backend=anabranch.backend)(torch.ones(64))
    except Exception as error:
        print("refused:", error)
try_it()
del os.environ["CXX"]
os.environ["PATH"], config.cpp.cxx = "/nowhere", (None, "g++")
try_it()
"""


@pytest.mark.slow
def test_a_machine_without_a_compiler_is_told_so(run_python, tmp_path):
    """Neither the one that $CXX names is there, nor one on the path."""
    told = run_python(NO_COMPILER, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"),
                      CXX="/nowhere/g++")
    first, second = told.stdout.split("refused:")[1:]
    assert "E0605" in first and "/nowhere/g++" in first, told
    assert "E0605" in second and "'g++'" in second, told
    assert not list(tmp_path.rglob("*.so"))  # nothing half done

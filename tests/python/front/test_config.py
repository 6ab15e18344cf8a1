# SPDX-License-Identifier: Apache-2.0
"""Options: who wins, what is refused, and what is left behind."""

import dataclasses
import re
import threading
from pathlib import Path

import numpy
import pytest

from anabranch import config
from anabranch.errors import ConfigError


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name, *_ in config.describe():
        monkeypatch.delenv(f"ANABRANCH_{name.upper()}", raising=False)
        monkeypatch.delenv(f"ANABRANCH_FORCE_{name.upper()}", raising=False)
    yield
    for name, *_ in config.describe():
        delattr(config, name)


def test_every_option_has_a_line_of_text_and_a_default_of_its_type():
    for name, kind, default, doc in config.describe():
        assert doc.endswith(".") and len(doc) > 20, name
        assert (type(default).__name__ if default is not None else "None") in kind, name
        assert getattr(config, name) == default


def test_every_option_is_read_somewhere():
    """One that nothing reads would be a promise that nobody keeps."""
    files = Path(config.__file__).parent.rglob("*.py")
    text = "".join(path.read_text() for path in files if path.name != "config.py")
    for name, *_ in config.describe():
        assert re.search(rf"\b(chosen|config|options)\.{name}\b", text), name


def test_options_beat_config_beats_environment_beats_default(monkeypatch):
    assert config.resolve().spin_us == 400
    monkeypatch.setenv("ANABRANCH_SPIN_US", "1")
    assert config.resolve().spin_us == 1
    config.spin_us = 2
    assert config.resolve().spin_us == 2
    assert config.resolve({"spin_us": 3}).spin_us == 3


def test_a_forced_variable_beats_all(monkeypatch):
    monkeypatch.setenv("ANABRANCH_FORCE_SPIN_US", "4")
    config.spin_us = 2
    assert config.resolve({"spin_us": 3}).spin_us == 4 and config.spin_us == 4


@pytest.mark.parametrize("name, text, value", [
    ("strict", "1", True), ("strict", "on", True), ("strict", "No", False), ("delay_seed", "7", 7),
    ("delay_seed", "none", None), ("library_path", "/tmp/x", "/tmp/x"),
    ("progress", "false", False),
    ("progress", "None", None), ("strict", "", False), ("activation_memory", "0.6", 0.6),
    ("activation_memory", "10000", 10000), ("activation_memory", "fit", "fit"),
    ("activation_memory", "none", None)])
def test_variables_are_read_as_their_options_type(monkeypatch, name, text, value):
    monkeypatch.setenv(f"ANABRANCH_{name.upper()}", text)
    assert getattr(config.resolve(), name) == value


@pytest.mark.parametrize("name, text", [("strict", "maybe"), ("strict", "7"), ("spin_us", "fast"),
                                        ("progress", "2.5"), ("max_threads", "+-+3"),
                                        ("max_threads", "--5"), ("spin_us", "1_000"),
                                        ("delay_seed", "٣"),
                                        ("max_parallel_kernels", "nan"),
                                        ("max_parallel_kernels", "+"), ("spin_us", "1e3")])
def test_a_variable_of_the_wrong_type_is_refused_by_its_name(monkeypatch, name, text):
    monkeypatch.setenv(f"ANABRANCH_{name.upper()}", text)
    with pytest.raises(ConfigError,
                       match=f"ANABRANCH_{name.upper()}.*{re.escape(repr(text))}") as caught:
        config.resolve()
    assert caught.value.code == 702


@pytest.mark.parametrize("name, value", [("strict", 1), ("strict", None), ("spin_us", True),
                                         ("spin_us", 2.0), ("max_threads", "2"),
                                         ("library_path", 5),
                                         ("max_parallel_kernels", float("nan")),
                                         ("max_parallel_kernels", float("inf")),
                                         ("max_recordings", False), ("delay_seed", 1 + 0j)])
def test_a_value_of_the_wrong_type_is_refused_with_both_types(name, value):
    with pytest.raises(ConfigError) as caught:
        setattr(config, name, value)
    kind = next(kind for known, kind, *_ in config.describe() if known == name)
    assert caught.value.code == 702
    assert all(word in str(caught.value) for word in (repr(value), type(value).__name__, kind))


@pytest.mark.parametrize("name, value", [("spin_us", -1), ("max_threads", 0), ("delay_seed", -3)])
def test_a_value_out_of_range_is_refused(name, value):
    with pytest.raises(ConfigError, match=rf"{value}, the least possible is") as caught:
        config.resolve({name: value})
    assert caught.value.code == 703


NUMBERS = [name for name, kind, *_ in config.describe() if kind.startswith("int")]


def bounds(name):
    return config._FIELDS[name].metadata["bounds"]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_has_bounds_that_hold_wherever_it_comes_from(monkeypatch, name):
    least, most = bounds(name)
    variable = f"ANABRANCH_{name.upper()}"
    for value, words in ((least - 1, f"the least possible is {least}"), (most + 1, "the most "
                                                                                   "possible is"),
                         (-10**30, "the least"), (10**30, "the most")):
        for act in (lambda: setattr(config, name, value), lambda: config.patch(**{name: value}),
                    lambda: config.resolve({name: value}), lambda: config.resolve(**{name: value})):
            with pytest.raises(ConfigError, match=words) as caught:
                act()
            assert caught.value.code == 703 and name in str(caught.value)
        for forced in (variable, variable.replace("_", "_FORCE_", 1)):
            monkeypatch.setenv(forced, str(value))
            with pytest.raises(ConfigError, match=f"{forced} is {value}, {words}"):
                config.resolve()
            monkeypatch.delenv(forced)
    for value in (least, most):
        monkeypatch.setenv(variable, str(value))
        assert getattr(config.resolve(), name) == value
        assert getattr(config.resolve({name: value}), name) == value


def test_a_number_of_thousands_of_digits_is_refused_in_a_short_message(monkeypatch):
    with pytest.raises(ConfigError, match="a number of 33220 bits, the most") as caught:
        config.spin_us = 10**10000
    assert caught.value.code == 703
    monkeypatch.setenv("ANABRANCH_SPIN_US", "9" * 10000)
    with pytest.raises(ConfigError, match="ANABRANCH_SPIN_US is '9999") as caught:
        config.resolve()
    assert caught.value.code == 702 and len(str(caught.value)) < 300


def test_what_only_has_the_name_of_a_type_is_not_of_it():
    impostor = type("bool", (), {})()
    with pytest.raises(ConfigError, match=r"of the type .*test_config\.bool, the option wants "
                                          r"bool"):
        config.strict = impostor


def test_what_is_printed_has_a_line_for_each_option_whatever_a_variable_has(monkeypatch):
    monkeypatch.setenv("ANABRANCH_SPIN_US", "fast")
    with config.patch(max_threads=3):
        lines = str(config).splitlines()
    assert len(lines) == len(list(config.describe()))
    assert any(line.startswith("max_threads = 3  # int | None, 1 to 1024: Threads")
               for line in lines)
    assert any("ANABRANCH_SPIN_US is 'fast'" in line and "[E0702]" in line for line in lines)


def test_an_unknown_name_is_refused_wherever_it_stands_and_the_nearest_is_named():
    def attribute():
        config.strcit = True

    for act in (attribute, lambda: config.strcit, lambda: config.patch(strcit=True),
                lambda: config.resolve({"strcit": True})):
        with pytest.raises(ConfigError, match=r"(?s)'strcit'.*E0701.*Nearest: strict") as caught:
            act()
        assert caught.value.code == 701
    assert not hasattr(config, "strcit")


def test_a_name_with_no_near_one_lists_them_all():
    with pytest.raises(ConfigError) as caught:
        config.resolve({"zzzzzz": 1})
    assert all(name in str(caught.value) for name, *_ in config.describe())


def test_unknown_variables_are_found_and_known_ones_are_not(monkeypatch):
    monkeypatch.setenv("ANABRANCH_STRCIT", "1")
    monkeypatch.setenv("ANABRANCH_FORCE_STRICT", "1")
    assert "ANABRANCH_STRCIT" in config.unknown_variables()
    assert "ANABRANCH_FORCE_STRICT" not in config.unknown_variables()


def test_bounds_are_what_the_core_takes_uncut():
    from anabranch._core.abi import CaptureOptions, HostOptionsFields

    most = {name: bounds(name)[1] for name in NUMBERS}
    host = HostOptionsFields(max_lanes=most["max_threads"], spin_ns=most["spin_us"] * 1000,
                             delays_seed=most["delay_seed"])
    assert (host.max_lanes, host.spin_ns // 1000, host.delays_seed) == (
        most["max_threads"], most["spin_us"], most["delay_seed"])
    capture = CaptureOptions(lanes=most["max_parallel_kernels"], ahead_bytes=most["prefetch_bytes"])
    assert (capture.lanes, capture.ahead_bytes) == (most["max_parallel_kernels"],
                                                    most["prefetch_bytes"])


@pytest.mark.parametrize("value", [["E0312", 315], {"e0312", "0315"}, (312, 315), "E0312, E0315"],
                         ids=["list", "set", "tuple", "text"])
def test_codes_to_allow_come_as_numbers_or_as_messages_show_them(monkeypatch, value):
    wanted = frozenset((312, 315))
    assert config.resolve({"allow": value}).allow == wanted
    with config.patch(allow=value):
        assert config.allow == wanted
    monkeypatch.setenv("ANABRANCH_ALLOW", "E0312,E0315")
    assert config.allow == config.resolve().allow == wanted
    monkeypatch.setenv("ANABRANCH_ALLOW", "")
    assert config.allow == config.resolve({"allow": []}).allow == frozenset()


def test_a_code_that_cannot_be_allowed_is_refused_with_the_nearest(monkeypatch):
    for act in (lambda: config.resolve({"allow": ["E0399"]}), lambda: config.patch(allow={399})):
        with pytest.raises(ConfigError, match=r"(?s)allow.* names E0399, .*Nearest: E0341") as one:
            act()
        assert one.value.code == 703
    with pytest.raises(ConfigError, match="allow.* names E9999, which is no code"):
        config.allow = ["E9999"]
    monkeypatch.setenv("ANABRANCH_ALLOW", "E0312,E0701")
    with pytest.raises(ConfigError, match=r"ANABRANCH_ALLOW names E0701"):
        config.resolve()


@pytest.mark.parametrize("value", [312, None, ["many"], [3.12], [True], [["E0312"]], "E03x"])
def test_what_is_no_collection_of_codes_is_refused(value):
    with pytest.raises(ConfigError, match=r"allow.* wants frozenset\[int\]") as caught:
        config.allow = value
    assert caught.value.code == 702


def test_numbers_of_other_libraries_are_taken_as_pythons_own():
    found = config.resolve({"activation_memory": numpy.float64(0.5), "spin_us": numpy.int64(7)})
    assert found.activation_memory == 0.5 and type(found.activation_memory) is float
    assert found.spin_us == 7 and type(found.spin_us) is int
    with pytest.raises(ConfigError, match="wants bool"):
        config.resolve({"strict": numpy.int64(1)})


def test_a_share_of_memory_that_is_given_as_bytes_is_refused():
    with pytest.raises(ConfigError, match=r"is 1, which are bytes; all of it is 1\.0"):
        config.resolve({"activation_memory": 1})
    assert config.resolve({"activation_memory": 0}).activation_memory == 0


def test_a_patch_that_was_not_entered_cannot_be_left():
    with pytest.raises(RuntimeError, match="without having been entered"):
        config.patch(strict=True).__exit__(None, None, None)


def test_a_path_object_is_taken_as_its_text(tmp_path):
    assert config.resolve({"library_path": tmp_path}).library_path == str(tmp_path)


def test_patch_restores_what_was_there_also_after_an_error():
    config.spin_us = 2
    with pytest.raises(KeyError), config.patch(spin_us=9, strict=True):
        assert (config.spin_us, config.strict) == (9, True)
        raise KeyError
    assert (config.spin_us, config.strict) == (2, False)


def test_patches_nest_and_may_be_entered_again():
    patch = config.patch(spin_us=9)
    with patch, config.patch(spin_us=10):
        with patch:
            assert config.spin_us == 9
        assert config.spin_us == 10
    assert config.spin_us == 400


def test_patch_leaves_the_environment_to_show_through_afterwards(monkeypatch):
    with config.patch(spin_us=9):
        pass
    monkeypatch.setenv("ANABRANCH_SPIN_US", "1")
    assert config.spin_us == 1


def test_patch_decorates_a_function_and_keeps_its_name():
    @config.patch(strict=True)
    def step():
        """Says what is set."""
        return config.strict

    assert step() is True and config.strict is False
    assert step.__name__ == "step" and step.__doc__ == "Says what is set."


def test_a_refused_patch_changes_nothing():
    with pytest.raises(ConfigError):
        config.patch(spin_us=9, strict="yes")
    assert config.spin_us == 400


def test_a_reader_sees_all_of_a_patch_or_none():
    seen, stop = set(), threading.Event()

    def read():
        while not stop.is_set():
            values = config.resolve()
            seen.add((values.spin_us, values.strict))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(300):
        with config.patch(spin_us=9, strict=True):
            pass
    stop.set()
    reader.join(30)
    assert seen <= {(400, False), (9, True)}


def test_the_page_lists_every_option_as_it_is():
    page = (Path(__file__).parents[3] / "docs" / "python.md").read_text()
    rows = [f"| `{name}` | {kind.replace(' | ', ' or ')} | `{default}` | {doc} |"
            for name, kind, default, doc in config.describe()]
    assert [line for line in page.splitlines() if line in rows] == rows
    assert page.count("\n| `") >= len(rows)


def test_type_checkers_are_told_of_every_option():
    """The module's class answers them; what stands below TYPE_CHECKING is for mypy and editors."""
    declared = re.findall(r"^    (\w+): ([\w| \[\]]+)$", Path(config.__file__).read_text().split(
        "if TYPE_CHECKING:")[-1], re.MULTILINE)
    assert declared == [(field.name, field.type) for field in dataclasses.fields(config.Options)]

# SPDX-License-Identifier: Apache-2.0
"""Errors: families, texts and codes."""

import pickle
import re
from pathlib import Path

import pytest

from anabranch import errors

PACKAGE = Path(errors.__file__).parent


def test_codes_are_in_order_with_unique_names_and_a_meaning():
    assert list(errors.CODES) == sorted(errors.CODES)
    names = [name for name, _ in errors.CODES.values()]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() and len(meaning) > 10 and not meaning.endswith(".")
               for name, meaning in errors.CODES.values())


@pytest.mark.parametrize("code, family", [
    (101, errors.ProgramError), (201, errors.PlanError), (303, errors.RecordError),
    (402, errors.LaunchError), (503, errors.PlanFileError), (607, errors.CompileError),
    (702, errors.ConfigError)])
def test_a_native_status_becomes_the_class_of_its_family(code, family):
    error = errors.from_native(code, "launch: no.")
    assert type(error) is family and isinstance(error, errors.AnabranchError)
    assert error.code == code


def test_a_native_status_of_no_known_family_is_still_an_error_of_ours():
    assert type(errors.from_native(9901, "new: no.")) is errors.AnabranchError


def test_a_code_that_the_core_has_written_is_not_written_twice():
    text = "launch: binding 3 has 4 bytes, the recording needs 8. [E0402]"
    assert str(errors.from_native(402, text)) == text


def test_the_text_has_message_code_and_remedy():
    error = errors.CompileError(604, "backend: torch is not installed.", "Install it.")
    assert str(error) == "backend: torch is not installed. [E0604]\nInstall it."


def test_an_error_survives_the_way_between_processes():
    error = errors.PlanError(201, "plan: a race.", "Add an edge.")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is errors.PlanError and str(again) == str(error) and again.code == 201


def test_every_code_that_the_package_raises_is_in_the_table():
    raised = set()
    for path in PACKAGE.glob("*.py"):
        text = path.read_text()
        raised |= {int(code) for code in re.findall(r"Error\(\s*(\d{3})\b", text)}
        raised |= {int(code) for code in re.findall(r"\bE0([67]\d\d)\b", text)
                   if path.name != "errors.py"}
    assert {code for code in raised if code >= 600} <= set(errors.CODES)

# SPDX-License-Identifier: Apache-2.0
"""Finds and loads the C++ core.

``core`` has the functions of bridge/anabranch_c.h as attributes, without their prefix. Failure:
LibraryMissing [E0606] where there is no library, and [E0610] where it is of another version.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anabranch import config, errors
from anabranch._core.abi import SIGNATURES

_NAME = "libanabranch_bridge.so"


class NativeError(errors.AnabranchError):
    """A failure of the core, in its own words: what this package catches. What is raised is also of
    the documented class of its code, and has that one's name, so that nobody else need know
    this."""

    def __reduce__(self) -> tuple[Any, ...]:  # another process has the documented class alone
        return errors.from_native, (self.code, self.message), self.__dict__


class LibraryMissing(errors.CompileError, ImportError):
    """The native library cannot be loaded. Also an ImportError."""


def _find_library() -> Path:
    looked = []
    if config.library_path is not None:
        looked.append(Path(config.library_path))
    else:
        looked.append(Path(str(importlib.resources.files("anabranch"))) / "lib" / _NAME)
        looked.append(Path(__file__).resolve().parents[3] / "build/release/bridge" / _NAME)
    for path in looked:
        if path.is_file():
            return path
    raise LibraryMissing(
        606, f"import: {_NAME} is not there: {', '.join(map(str, looked))}.",
        "Install the package again, or build it (make) and set ANABRANCH_LIBRARY_PATH to its path.")


library_path: Path = _find_library()


def _load() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(library_path))
    except OSError as error:
        raise LibraryMissing(606, f"import: {library_path} cannot be loaded: {error}.") from error


class Core:
    """The functions of the library, as attributes without their prefix."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name, (result, *arguments) in SIGNATURES.items():
            function = getattr(library, f"anabranch_{name}", None)
            if function is None:
                raise LibraryMissing(
                    610, f"import: {library._name} has no anabranch_{name}: it is of another "
                    "version than this package.", "Install or build both anew.")
            function.restype = result
            function.argtypes = arguments
            setattr(self, name, function)

    def undeclared(self, name: str) -> Any:
        """The function without its argument types, which ctypes then does not convert: half the
        cost of a call, and nothing between a wrong argument and a crash."""
        function = self._library[f"anabranch_{name}"]
        function.restype = SIGNATURES[name][0]
        return function

    def address(self, name: str) -> int:
        """Where the function is."""
        found = ctypes.cast(self._library[f"anabranch_{name}"], ctypes.c_void_p).value
        assert found is not None
        return found

    if TYPE_CHECKING:
        def __getattr__(self, name: str) -> Any: ...


core = Core(_load())


@functools.cache
def _both(family: type) -> type[NativeError]:
    names = {"__module__": family.__module__, "__doc__": family.__doc__}
    return type(family.__name__, (NativeError, family), names)


def native_error(code: int, message: str) -> NativeError:
    """The exception for a failure of the core; the caller raises it."""
    family: type = errors.family_of(code)
    return _both(family)(code, message)


def last_error() -> NativeError:
    """This thread's last failure."""
    return native_error(core.last_error_code(), core.last_error_text().decode(errors="replace"))


version: str = core.version().decode()

# SPDX-License-Identifier: Apache-2.0
"""Writing a whole file, whatever lies at its path: the rule of src/base/write_file.h, which the
core keeps for plan files. docs/file-formats.md has it as a table.

Threads: any; of two writers of one path the last one wins. Failure: PlanFileError [E0501] with the
system's reason, and nothing is left behind; what is written through may then hold a part.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat

from anabranch import errors

_UNREADABLE = 501
_ANEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_THROUGH = os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOCTTY


def write_file(act: str, path: str | os.PathLike[str], data: bytes) -> None:
    """``act`` begins the message of a failure: "write trace"."""
    name = os.fspath(path)
    try:
        _write(name, data)
    except OSError as error:
        raise errors.from_native(_UNREADABLE, f"{act} {name!r}: {error.strerror}") from error


def _write(path: str, data: bytes) -> None:
    try:
        old = os.lstat(path)
    except FileNotFoundError:
        old = None
    if old is not None and not stat.S_ISREG(old.st_mode):
        _write_through(path, data)
    elif old is not None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    elif not _replace(path, old, data):
        _write_through(path, data)


def _write_through(path: str, data: bytes) -> None:
    with open(os.open(path, _THROUGH), "wb") as file:
        file.write(data)


def _replace(path: str, old: os.stat_result | None, data: bytes) -> bool:
    """Writes a file of its own and gives it the name when all bytes are there. False, and nothing
    done, where it would take the old one from its owner."""
    temporary = os.path.join(os.path.dirname(path), f".anabranch-{secrets.token_hex(8)}")
    mode = 0o666 if old is None else stat.S_IMODE(old.st_mode) & 0o777
    with contextlib.ExitStack() as cleanup, open(os.open(temporary, _ANEW, mode), "wb") as file:
        cleanup.callback(os.unlink, temporary)
        if old is not None:
            made = os.fstat(file.fileno())
            if (made.st_uid, made.st_gid) != (old.st_uid, old.st_gid):
                return False
        file.write(data)
        if old is not None:
            os.fchmod(file.fileno(), mode)
        file.close()
        os.rename(temporary, path)
        cleanup.pop_all()
    return True

# SPDX-License-Identifier: Apache-2.0
"""Pages opened in a real Chromium without a window."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import tempfile

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
DEADLINE_S = 120


@dataclasses.dataclass
class Opened:
    dom: str  # when its scripts have run, and without these
    said: list[str]  # on the console: errors and what scripts print

    def count(self, pattern):
        return len(re.findall(pattern, self.dom))


def run(*flags):
    """What it writes to standard output and to its log."""
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--hide-scrollbars", f"--user-data-dir={profile}", *flags],
            capture_output=True, text=True, timeout=DEADLINE_S,
            env={**os.environ, "HOME": profile})
    return done.stdout, done.stderr


def opened(path, *flags, width=1000, height=1200):
    """Time is run ahead until nothing is left to do, and no frames are drawn: what waits for one
    waits for ever."""
    dom, log = run("--enable-logging=stderr", "--virtual-time-budget=5000",
                   f"--window-size={width},{height}", *flags, "--dump-dom", f"file://{path}")
    return Opened(re.sub(r"<script.*?</script>", "", dom, flags=re.DOTALL),
                  [line for line in log.splitlines() if ":CONSOLE" in line])

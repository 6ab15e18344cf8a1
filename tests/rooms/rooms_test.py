# SPDX-License-Identifier: Apache-2.0
"""The room checker finds every kind of breach, and nothing in a tree that keeps the rules."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CHECKER = Path(__file__).with_name("check_rooms.py")

# A small house in which every rule is kept.
GOOD = {
    "include/anabranch/status.h": "#include <string>\n",
    "include/anabranch/program.h": '#include "anabranch/status.h"\n',
    "include/anabranch/trace.h": '#include "anabranch/record.h"\n',
    "include/anabranch/experimental/tape.h": '#include "anabranch/status.h"\n',
    "src/base/status.cpp": '#include <fmt/format.h>\n#include "anabranch/status.h"\n',
    "src/plan/order.h": '#include "program/view.h"\n#include "anabranch/plan.h"\n',
    "src/plan/order_test.cpp": '#include <nlohmann/json.hpp>\n#include "plan/order.h"\n',
    "src/device/host/worker.cpp": '#include "anabranch/trace.h"\n#include "program/view.h"\n',
    "src/device/cuda/driver.cpp": "#include <cuda.h>\n",
    "src/device/sim/driver.cpp": '#include "device/cuda/table.h"\n#include "anabranch/status.h"\n',
    "src/record/record_test.cpp": '#include "device/sim/sim.h"\n',
    "src/record/record.cpp": '#include "record/host/a.h"\n#include "record/cuda/plan/a.h"\n',
    "src/record/transfer_loops.cpp": '#include "record/transfer_loops.h"\n',
    "src/record/host/a.cpp": '#include "record/transfer_loops.h"\n',
    "src/record/host/a_test.cpp": '#include "record/record_testing.h"\n',
    "src/record/cuda/image/a.cpp": '#include "record/cuda/image/b.h"\n#include "plan/a.h"\n',
    "src/record/cuda/exec/a.cpp": '#include "record/cuda/image/a.h"\n',
    "src/record/cuda/discover.cpp": '#include "record/cuda/exec/a.h"\n',
    "src/record/cuda/plan/a.h": '#include "record/cuda/discover.h"\n',
    "src/launch/launch.cpp": '#include "record/recording.h"\n#include "device/host/worker.h"\n',
    "bridge/bridge.h": "",
    "bridge/plan.cpp": '#include "bridge.h"\n#include "anabranch/plan.h"\n',
    "tool/main.cpp": "#include <CLI/CLI.hpp>\n#include <anabranch/anabranch.h>\n",
    "python/anabranch/__init__.py": "from anabranch import config, errors\n",
    "python/anabranch/errors.py": "import reprlib\n",
    "python/anabranch/config.py": "from anabranch.errors import ConfigError\n",
    "python/anabranch/streams.py": "import torch\nfrom anabranch.config import MOST_LANES\n",
    "python/anabranch/_compat/__init__.py": "from anabranch._compat.cuda import current_stream\n",
    "python/anabranch/_compat/cuda.py": "import torch\n",
    "python/anabranch/_core/library.py": "from anabranch import config\n",
    "python/anabranch/_fx/schema.py": "import torch\nfrom anabranch import _compat\n",
    "python/anabranch/_record/__init__.py": "",
    "python/anabranch/_record/tensors.py": "import torch\n",
    "python/anabranch/_record/recorder.py": "from anabranch._record.capture.step import Step\n",
    "python/anabranch/_record/state/walk.py": "from anabranch._record.tensors import units_of\n",
    "python/anabranch/_record/capture/step.py": "from anabranch._fx.schema import is_view\n",
    "python/anabranch/_compile/graph.py": "from anabranch import errors\n",
    "python/anabranch/_compile/backend.py": "from anabranch._record.recorder import Recorder\n",
    "python/anabranch/doctor.py": "def torch_of():\n    import torch\n    return torch\n",
}

# What is added to the good house, and what the checker must say of it.
BAD = {
    "plan includes a room downstream": (
        {"src/plan/a.cpp": '\n#include "launch/x.h"\n'},
        "src/plan/a.cpp:2: room plan includes launch/x.h of room launch, which is not upstream"),
    "program includes a public header downstream": (
        {"src/program/a.h": '#include "anabranch/plan.h"\n'},
        "src/program/a.h:1: room program includes anabranch/plan.h of room plan"),
    "a test of plan includes record": (
        {"src/plan/a_test.cpp": '#include "anabranch/record.h"\n'},
        "src/plan/a_test.cpp:1: room plan includes anabranch/record.h of room record"),
    "offload includes programs": (
        {"src/offload/a.cpp": '#include "anabranch/program.h"\n'},
        "src/offload/a.cpp:1: room offload includes anabranch/program.h of room program"),
    "plan includes a device": (
        {"src/plan/a.cpp": '#include "device/host/worker.h"\n'},
        "src/plan/a.cpp:1: room plan includes device/host/worker.h of room device"),
    "the host device includes plan's own files": (
        {"src/device/host/a.cpp": '#include "plan/order.h"\n'},
        "src/device/host/a.cpp:1: device host includes plan/order.h of room plan"),
    "one device includes another": (
        {"src/device/host/a.cpp": '#include "device/cuda/table.h"\n'},
        "src/device/host/a.cpp:1: device host includes device/cuda/table.h of room device"),
    "the driver's table knows programs": (
        {"src/device/cuda/a.cpp": '#include "anabranch/program.h"\n'},
        "src/device/cuda/a.cpp:1: device cuda includes anabranch/program.h; it may include base"),
    "the driver's table knows its simulation": (
        {"src/device/cuda/a.cpp": '#include "device/sim/sim.h"\n'},
        "src/device/cuda/a.cpp:1: device cuda includes device/sim/sim.h; it may include base "
        "and anabranch/device.h only"),
    "the simulated driver knows another device": (
        {"src/device/sim/a.cpp": '#include "device/host/worker.h"\n'},
        "src/device/sim/a.cpp:1: device sim includes device/host/worker.h; it may include base and "
        "device/cuda/ only"),
    "the simulated driver in what ships": (
        {"src/record/a.cpp": '#include "device/sim/sim.h"\n'},
        "src/record/a.cpp:1: room record includes device/sim/sim.h; only tests and benchmarks"),
    "CUDA outside its device": (
        {"src/record/a.cpp": "#include <cuda_runtime.h>\n"},
        "src/record/a.cpp:1: room record includes cuda_runtime.h; only device/cuda knows CUDA"),
    "CUDA in the host device": (
        {"src/device/host/a.cpp": "# include <cuda.h>\n"},
        "src/device/host/a.cpp:1: room device includes cuda.h; only device/cuda knows CUDA"),
    "torch in a room": (
        {"src/base/a.cpp": "#include <torch/torch.h>\n"},
        "src/base/a.cpp:1: room base includes torch/torch.h; torch and Python appear nowhere"),
    "ATen in a device": (
        {"src/device/cuda/a.cpp": "#include <ATen/ATen.h>\n"},
        "src/device/cuda/a.cpp:1: room device includes ATen/ATen.h; torch and Python"),
    "Python in a room": (
        {"src/trace/a.cpp": "#include <Python.h>\n"},
        "src/trace/a.cpp:1: room trace includes Python.h; torch and Python appear nowhere"),
    "torch in a room's build": (
        {"src/record/CMakeLists.txt": "find_package(Torch REQUIRED)\n"},
        "src/record/CMakeLists.txt:1: torch and Python appear nowhere in src"),
    "a tool's library in a room": (
        {"src/trace/a.cpp": "#include <nlohmann/json.hpp>\n"},
        "src/trace/a.cpp:1: room trace includes nlohmann/json.hpp; that library belongs"),
    "an include without its room": (
        {"src/plan/a.cpp": '#include "order.h"\n'},
        'src/plan/a.cpp:1: "order.h" is written without its room'),
    "an include that climbs": (
        {"src/plan/a.cpp": '#include "../launch/x.h"\n'},
        'src/plan/a.cpp:1: "../launch/x.h" is written without its room'),
    "the tool looks inside": (
        {"tool/a.cpp": '#include "plan/order.h"\n'},
        "tool/a.cpp:1: tool includes plan/order.h, which is not public"),
    "the bridge climbs inside": (
        {"bridge/a.cpp": '#include "../src/plan/order.h"\n'},
        "bridge/a.cpp:1: bridge includes ../src/plan/order.h, which is not public"),
    "an example includes a header that is not installed": (
        {"examples/cpp/a.cpp": "#include <anabranch/order.h>\n"},
        "examples/cpp/a.cpp:1: examples includes anabranch/order.h, which is not public"),
    "a public header reaches inside": (
        {"include/anabranch/plan.h": '#include "plan/order.h"\n'},
        "include/anabranch/plan.h:1: a public header includes plan/order.h, which is not public"),
    "a public header needs a library": (
        {"include/anabranch/plan.h": "#include <fmt/format.h>\n"},
        "include/anabranch/plan.h:1: a public header includes <fmt/format.h>"),
    "a public header includes downstream": (
        {"include/anabranch/plan.h": '#include "anabranch/trace.h"\n'},
        "include/anabranch/plan.h:1: room plan includes anabranch/trace.h of room trace"),
    "a public header of no room": (
        {"include/anabranch/util.h": ""},
        "include/anabranch/util.h: is the front of no room"),
    "a room within record includes a later one": (
        {"src/record/cuda/order/a.cpp": '#include "record/cuda/arena/a.h"\n'},
        "src/record/cuda/order/a.cpp:1: room record/cuda/order includes record/cuda/arena/a.h of "
        "room record/cuda/arena, which is not upstream"),
    "a test of a room within record includes a later one": (
        {"src/record/cuda/rewrite/a_test.cpp": '#include "record/cuda/discover.h"\n'},
        "src/record/cuda/rewrite/a_test.cpp:1: room record/cuda/rewrite includes "
        "record/cuda/discover.h of room record/cuda, which is not upstream"),
    "discovery knows plans": (
        {"src/record/cuda/a.cpp": '#include "record/cuda/plan/a.h"\n'},
        "src/record/cuda/a.cpp:1: room record/cuda includes record/cuda/plan/a.h of room "
        "record/cuda/plan, which is not upstream"),
    "the host's recordings know CUDA's": (
        {"src/record/host/b.cpp": '#include "record/cuda/image/a.h"\n'},
        "src/record/host/b.cpp:1: room record/host includes record/cuda/image/a.h of room "
        "record/cuda/image, which is not upstream"),
    "CUDA's recordings know the host's": (
        {"src/record/cuda/plan/a.cpp": '#include "record/host/a.h"\n'},
        "src/record/cuda/plan/a.cpp:1: room record/cuda/plan includes record/host/a.h of room "
        "record/host, which is not upstream"),
    "a room within record includes its front": (
        {"src/record/cuda/plan/a.cpp": '#include "record/record.h"\n'},
        "src/record/cuda/plan/a.cpp:1: room record/cuda/plan includes record/record.h of room "
        "record, which is not upstream"),
    "what both devices share knows one of them": (
        {"src/record/region_table.cpp": '#include "record/host/a.h"\n'},
        "src/record/region_table.cpp:1: room record includes record/host/a.h of room record/host"),
    "an experimental header of no room": (
        {"include/anabranch/experimental/util.h": ""},
        "include/anabranch/experimental/util.h: is the front of no room"),
    "an experimental header includes downstream": (
        {"include/anabranch/experimental/tape.h": '#include "anabranch/trace.h"\n'},
        "include/anabranch/experimental/tape.h:1: room device includes anabranch/trace.h of room "
        "trace"),
    "a folder within record that is no room": (
        {"src/record/cuda/util/a.cpp": ""},
        "src/record/cuda/util: is no room within record; these are record/host, record/cuda/image"),
    "a folder that is no room": (
        {"src/util/a.cpp": ""},
        "src/util: is no room; rooms are base, program, plan, offload, numbers, device, record, launch, "
        "trace"),
    "a module of no room": (
        {"python/anabranch/_util.py": ""},
        "python/anabranch/_util.py: is in no room; rooms of anabranch are errors, _compat,"),
    "a module of no room in a room": (
        {"python/anabranch/_record/util.py": ""},
        "python/anabranch/_record/util.py: is in no room of _record; those are refusals,"),
    "an import from downstream": (
        {"python/anabranch/_fx/a.py": "\nfrom anabranch._record.tensors import units_of\n"},
        "python/anabranch/_fx/a.py:2: room _fx imports _record.tensors, which is not upstream"),
    "an import from downstream when a function runs": (
        {"python/anabranch/_core/a.py": "def f():\n    from anabranch import streams\n"},
        "python/anabranch/_core/a.py:2: room _core imports streams, which is not upstream"),
    "an import of a module as one": (
        {"python/anabranch/_compat/a.py": "import anabranch.config\n"},
        "python/anabranch/_compat/a.py:1: room _compat imports config, which is not upstream"),
    "the state knows captures": (
        {"python/anabranch/_record/state/a.py":
            "from anabranch._record.capture.step import Step\n"},
        "python/anabranch/_record/state/a.py:1: room _record.state imports _record.capture.step, "
        "which is not upstream"),
    "a stage knows the recorder": (
        {"python/anabranch/_record/launch/a.py": "from anabranch._record import recorder\n"},
        "python/anabranch/_record/launch/a.py:1: room _record.launch imports _record.recorder, "
        "which is not upstream"),
    "a graph knows the backend": (
        {"python/anabranch/_compile/groups.py": "from anabranch._compile import backend\n"},
        "python/anabranch/_compile/groups.py:1: room _compile.groups imports _compile.backend"),
    "an import without its room": (
        {"python/anabranch/_record/state/a.py": "from .walk import Walk\n"},
        "python/anabranch/_record/state/a.py:1: .walk.Walk is written without its room"),
    "torch where it may be missing": (
        {"python/anabranch/_core/a.py": "from torch import Tensor\n"},
        "python/anabranch/_core/a.py:1: room _core imports torch, and has to work without it"),
    "a name of a class with two meanings": (
        {"python/anabranch/_record/state/a.py": "class Call: ...\nclass _Mine: ...\n",
         "python/anabranch/_record/state/b.py": "class _Mine: ...\nclass Call: ...\n"},
        "python/anabranch/_record/state/b.py:2: class Call is another one in "
        "python/anabranch/_record/state/a.py"),
    "a device that is none": (
        {"src/device/metal/a.cpp": ""},
        "src/device/metal: is no device; devices are host, cuda, sim"),
}


def run_checker(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return subprocess.run([sys.executable, str(CHECKER), folder], capture_output=True,
                              text=True, check=False)


class Rooms(unittest.TestCase):
    def test_a_house_that_keeps_the_rules_passes(self):
        run = run_checker(GOOD)
        self.assertEqual((run.returncode, run.stdout),
                         (0, "rooms: every include and import is allowed\n"), run.stdout)

    def test_every_breach_is_found_with_its_file_and_room(self):
        for what, (files, message) in BAD.items():
            with self.subTest(what):
                run = run_checker(GOOD | files)
                self.assertEqual(run.returncode, 1, run.stdout)
                self.assertIn(message, run.stdout)
                self.assertEqual(len(run.stdout.splitlines()), 1, run.stdout)

    def test_a_folder_without_sources_is_an_error(self):
        self.assertEqual(run_checker({"readme": ""}).returncode, 2)


if __name__ == "__main__":
    unittest.main()

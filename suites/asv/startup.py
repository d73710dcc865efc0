"""What a user waits for before anything happens."""

import subprocess
import sys
import tempfile
from pathlib import Path

import smimbench
from smimbench.run import campaign as runner
from smimbench.run.store import Store

TINY = """
[problem]
model   = { name = "sequence-multi-index", tokens = 2 }
channel = { name = "linear", noise = 0.2 }
prior   = { name = "gaussian" }
[grid]
alpha     = [1.0]
dimension = [4]
seeds     = 20
[[algorithms]]
name = "gamp"
[run]
max_iterations = 1
"""


class Startup:
    """A new interpreter each time."""

    timeout = 60
    number = 1
    repeat = (3, 10, 10.0)
    warmup_time = 0

    def _call(self, *arguments):
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)

    def time_import_numpy(self):
        """For comparison."""
        self._call("-c", "import numpy")

    def time_import(self):
        self._call("-c", "import smimbench")

    def time_help(self):
        self._call("-P", "-m", "smimbench", "--help")


class Overhead:
    """Engine and store around algorithms that do next to nothing."""

    timeout = 120
    number = 1
    warmup_time = 0

    def setup(self):
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "tiny.toml"
        path.write_text(TINY)
        self.cells = smimbench.load_suite(path).cells()
        runner.run_cells(self.cells[:1], Store(Path(self.folder.name) / "first"))

    def teardown(self):
        self.folder.cleanup()

    def time_twenty_cells(self):
        runner.run_cells(self.cells, Store(Path(self.folder.name) / "results"))

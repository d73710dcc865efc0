"""A worker process by itself, as the executor starts it."""

import json
import subprocess
import sys

from smimbench.run.clock import STILL
from smimbench.run.executor import send

SLOW_IMPORT = "import time\nfrom pathlib import Path\nPath(__file__).with_name('importing').touch()\ntime.sleep(3600)\n"


def test_a_worker_ends_with_its_parent_while_it_imports_a_plugin(tmp_path):
    """The registry keeps plugins from ending the process on import; the worker itself must still be able to."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "slow.py").write_text(SLOW_IMPORT)
    (tmp_path / "pulse").write_bytes(STILL)
    setup = {
        "paths": [str(tmp_path / "plugins" / "slow.py")],
        "third_party": True,
        "only": ["slow"],
        "heartbeat": str(tmp_path / "pulse"),
        "module": "smimbench.run.cell",
        "timing": True,
        "threads": 1,
    }
    process = subprocess.Popen(
        [sys.executable, "-c", "from smimbench.run.executor import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        send(process.stdin, json.dumps(setup).encode())
        while not (tmp_path / "plugins" / "importing").exists():
            assert process.poll() is None
        process.stdin.close()
        assert process.wait(timeout=60) == 1
    finally:
        process.kill()

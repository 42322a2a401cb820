"""One fault of each kind: `benchmarks/faults.py` kills, fills the disk and damages checkpoints."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks/faults.py"


@pytest.mark.slow
def test_every_fault_is_survived():
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--faults", "5", "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)
    assert len({row["fault"] for row in rows}) == 5
    assert [row["survived"] for row in rows] == [row["tried"] for row in rows] == [1] * 5
    assert [row["bytes_lost"] for row in rows] == [0] * 5

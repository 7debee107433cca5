"""Half a minute of `make jepsen`: real controllers on a real PostgreSQL under every kind of fault, with a lease of two seconds."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.jepsen.faults import Kind
from tests.support.postgres import find_programs

pytestmark = [pytest.mark.site, pytest.mark.safety]
ROOT = Path(__file__).parents[2]
SHORT = (
    "--lease-s",
    "2",
    "--deaths-per-job-s",
    "30",
    "--alert-s",
    "2",
    "--stops-per-hour-max",
    "3",
    "--deaths-min",
    "20",
)


def why_not() -> str:
    if os.getuid() != 0:
        return "needs root: network and mount namespaces"
    missing = [name for name in ("unshare", "nft", "ip", "cc") if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if find_programs() is None:
        return "PostgreSQL is not installed: apt-get install postgresql"
    if subprocess.run(["unshare", "--net", "--mount", "true"], check=False).returncode:
        return "this machine makes no namespaces"
    return ""


needs_all = pytest.mark.skipif(bool(why_not()), reason=why_not())


def run(folder: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    """Run it; return its exit code, its result, and what it printed."""
    output = folder / "result.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench.jepsen", "--output", str(output), *SHORT, *words],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=900,
    )  # fmt: skip
    assert output.exists(), done.stderr[-4000:]
    return done.returncode, json.loads(output.read_text()), done.stdout


@needs_all
@pytest.mark.timeout(900)
def test_three_controllers_keep_every_rule_under_every_kind_of_fault(tmp_path: Path) -> None:

    # Of the seeds that draw each kind in half a minute, one that gives each fault of the database time, and commits to cut.
    code, told, text = run(tmp_path, "--seconds", "30", "--seed", "96", "--jobs", "24")

    assert told["violations"] == [], text
    assert told["second"]["violations"] == [], text
    assert told["problems"] == [], text
    assert code == 0
    assert set(told["faults"]) == {kind.name for kind in Kind}
    assert told["counts"]["job journals"] >= 24
    assert told["counts"]["incidents recovered"] > 5
    assert told["counts"]["stops of training"] > 0
    assert told["counts"]["connections cut in mid-commit"] > 0
    assert told["counts"]["failovers of the database"] > 0

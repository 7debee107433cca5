"""A limit of open files that is too low is an error at the start, with what is needed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[3]
ASK = """
import resource, sys
from recovery.launcher.host.open_files import ensure_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
ensure_open_files(4, is_one_node=True)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def test_a_launcher_with_too_few_open_files_ends_with_a_clear_error(tmp_path: Path) -> None:
    line = (
        f"ulimit -n 40; exec {sys.executable} -m rankmend.cli run --nproc-per-node 4 "
        f"--state-dir {tmp_path} {__file__}"
    )

    done = run(["bash", "-c", line])

    assert done.returncode == 2
    assert done.stderr.startswith("rankmend: the limit of open files is 40 here")
    assert "4 ranks needs 72: raise it with `ulimit -n 72`" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_soft_limit_is_raised_as_far_as_is_needed() -> None:
    assert run([sys.executable, "-c", ASK, "50", "100"]).stdout == "(72, 100)\n"
    assert run([sys.executable, "-c", ASK, "90", "100"]).stdout == "(90, 100)\n"

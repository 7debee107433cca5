"""`rankmend run` with programs that are not Python."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
RUN_S_MAX = 300.0


@pytest.mark.parametrize(
    ("options", "command", "said"),
    [
        (["--no-python"], ["true"], ""),
        (["--no-python"], ["printf", "%s-%s", "one", "two"], "one-two"),
        ([], ["bash", "job.sh"], "rank 0 of 1"),
    ],
)
def test_a_program_that_is_no_python_runs_to_its_end(
    tmp_path: Path, options: list[str], command: list[str], said: str
) -> None:
    (tmp_path / "job.sh").write_text('echo "rank $RANK of $WORLD_SIZE"\n')
    launch = [sys.executable, "-m", "rankmend.cli", "run", "--standalone", "--nproc-per-node=1"]

    done = subprocess.run(
        [*launch, f"--state-dir={tmp_path / 'state'}", *options, *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert said in done.stdout

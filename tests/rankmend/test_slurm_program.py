"""Slurm's programs are asked with a limit, whoever asks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankmend.slurm_program import SlurmSilentError, run_slurm_program
from tests.support.eventually import eventually

pytestmark = pytest.mark.process


def test_answer_is_what_the_program_prints_and_its_exit_code() -> None:
    said = run_slurm_program(["sh", "-c", "echo NodeAddr=10.0.0.7; echo no >&2; exit 3"], 30, os.environ)  # fmt: skip

    assert (said.code, said.out, said.errors) == (3, b"NodeAddr=10.0.0.7\n", b"no\n")
    assert not said.is_not_run
    assert run_slurm_program(["no-such-program"], 30, os.environ).is_not_run


@pytest.mark.parametrize("path", ["/usr/bin:/bin", "/nowhere"])
def test_program_that_hangs_is_given_up_whatever_the_path_is(path: str) -> None:
    with pytest.raises(SlurmSilentError, match=r"no answer after 0\.2 s"):
        run_slurm_program(["/bin/sleep", "60"], 0.2, {"PATH": path})


def test_program_ends_by_its_time_out_though_who_asked_was_killed(tmp_path: Path) -> None:
    ask = (
        "import os, rankmend.slurm_program as one;"
        f"one.run_slurm_program(['sh', '-c', 'echo $$ >{tmp_path}/pid; exec sleep 600'], 2, os.environ)"
    )
    with subprocess.Popen([sys.executable, "-c", ask]) as asker:
        told = tmp_path / "pid"
        eventually(lambda: told.exists() and told.read_text().strip(), "the program")
        asker.kill()
    pid = int(told.read_text())

    eventually(lambda: not Path(f"/proc/{pid}").exists(), "the end of the program")

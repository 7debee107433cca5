"""A command whose output can't be written says so in one line, whether it prints a table or text."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    "words", [("incidents",), ("incidents", "--json"), ("--help",), ("status", "--help")]
)
def test_full_disk_is_an_error_in_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rankmend.cli", *words],
            env={"PATH": os.environ["PATH"], "RANKMEND_STATE_DIR": str(tmp_path)},
            cwd=Path(__file__).parents[2],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    assert done.stderr == "rankmend: the output can't be written: No space left on device\n"
    assert done.returncode == os.EX_IOERR

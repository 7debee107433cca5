"""Error texts that a real interpreter writes are read."""

import subprocess
import sys
from pathlib import Path

import pytest

from detectors.failed.error_text import error_line, parse_error
from tests.support.error_texts import error_in, traceback_of
from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise ValueError('bad batch 7')", "ValueError: bad batch 7"),
        ("import faulthandler, os; faulthandler.enable(); os.kill(os.getpid(), 11)", "Fatal Python error: Segmentation fault"),
        ("try:\n 1/0\nexcept ZeroDivisionError as e:\n raise OSError(28, 'No space left') from e", "OSError: [Errno 28] No space left"),
        ("x = = 1", "SyntaxError: invalid syntax"),
    ],
)  # fmt: skip
def test_what_this_python_writes_is_read(code: str, expected: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert error_line(error_in(*result.stderr.splitlines())) == expected


def test_interpreter_without_a_script_is_read(tmp_path: Path) -> None:
    script = tmp_path / "absent.py"
    result = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert error_in(*result.stderr.splitlines()).message.startswith(f"can't open file '{script}'")


def test_what_a_parser_of_options_refused_is_the_error(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    options = "".join(f"p.add_argument('--option-{number}')\n" for number in range(300))
    script.write_text(f"import argparse\np = argparse.ArgumentParser()\n{options}p.parse_args()\n")

    command = [sys.executable, str(script), "--resume", "ckpt/step_20.pt"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)

    told = "train.py: error: unrecognized arguments: --resume ckpt/step_20.pt"
    assert error_line(error_in(*result.stderr.splitlines()[-60:])) == told
    assert error_line(error_in("Usage: train.py", "", "Error: No such option: --resume")) == (
        "Error: No such option: --resume"
    )
    assert error_in(*traceback_of("ValueError: x"), "train.py: error: x").type_name == "ValueError"
    assert parse_error(["train.py: error: x", "step 3"]) is None

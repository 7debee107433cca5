"""The uncaught exception of a rank's main thread is recorded, whatever else the script prints or sets."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from detectors.failed.error_text import ErrorText, error_line, parse_record
from rankmend.hook import layout
from tests.support.hook import Rank, each_python

pytestmark = pytest.mark.process


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path, environment={layout.ENV_AUTO: "1"})


def raised(
    rank: Rank, python: str, code: str, *, exit_code: int = 1
) -> tuple[ErrorText | None, str]:
    """Return the recorded error and stderr of a script that ends with this code."""
    process = subprocess.Popen(
        rank.command(python, code),
        env=rank.variables(),
        cwd=rank.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    _out, err = process.communicate(timeout=300)
    assert process.returncode == exit_code, err
    path = rank.path.with_name(rank.path.name + layout.RAISED_SUFFIX)
    text = path.read_text() if path.exists() else ""
    rank.reader.close()
    return parse_record(text, {process.pid}), err


@each_python
def test_exception_and_what_it_came_from_are_recorded(rank: Rank, python: str) -> None:
    code = """
def load():
    try:
        {}["a"]
    except KeyError as error:
        raise ValueError("bad sample 7") from error
load()
"""
    error, err = raised(rank, python, code)

    assert error is not None
    assert error_line(error) == "ValueError: bad sample 7"
    assert "in load\\nKeyError: 'a'" in error.traceback.replace("\n", "\\n")
    assert err.rstrip().endswith("ValueError: bad sample 7")
    assert "rankmend" not in err


@each_python
@pytest.mark.parametrize(
    "noise",
    [
        "import atexit; atexit.register(lambda: 1 / 0)",
        "class W:\n    def __del__(self): raise AttributeError('x')\nimport builtins; builtins.w = W()",
        "import threading; threading.Thread(target=lambda: 1 / 0).start()",
        "import logging; logging.error('a %d', 'b')",
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'raise KeyError(3)'])",
        "import sys; sys.excepthook = lambda *_: print('own hook', file=sys.stderr)",
        "import sys; sys.excepthook = lambda *_: 1 / 0",
    ],
)
def test_nothing_that_the_script_prints_or_sets_takes_its_place(
    rank: Rank, python: str, noise: str
) -> None:
    error, err = raised(rank, python, f"{noise}\nraise ValueError('bad sample 7')")

    assert error is not None
    assert error_line(error) == "ValueError: bad sample 7"
    assert "own hook" in err or "own hook" not in noise


@each_python
def test_error_of_the_process_that_trains_is_not_replaced_by_what_started_it(
    rank: Rank, python: str
) -> None:
    inner = "import rankmend; rankmend.step(1); raise ValueError('bad sample 7')"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {inner!r}], check=True)"

    error, _err = raised(rank, python, code)

    path = rank.path.with_name(rank.path.name + layout.RAISED_SUFFIX)
    assert error is None, "the process is not the one that was started"
    assert json.loads(path.read_text())["chain"][0]["text"] == "bad sample 7"


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("import sys; sys.exit('no such split')", 1), ("import os; os._exit(3)", 3), ("pass", 0)],
)
def test_end_without_an_exception_is_not_recorded(rank: Rank, code: str, exit_code: int) -> None:
    assert raised(rank, sys.executable, code, exit_code=exit_code)[0] is None


@each_python
def test_exception_whose_text_raises_or_has_no_end_is_recorded(rank: Rank, python: str) -> None:
    code = """
class Odd(Exception):
    def __str__(self): raise RuntimeError("no text")
try:
    raise Odd()
except Odd:
    raise ValueError("\\udcff" + "x" * 3000000)
"""
    error, _err = raised(rank, python, code)

    assert error is not None
    assert error.type_name == "ValueError"
    assert "Odd: <the text of this exception can't be read>" in error.traceback
    assert len(error.message) == 2000

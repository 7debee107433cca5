"""Programs of the site's beside a log's verdict: what they get, what is shown of them, and how they end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rankmend.cli.diagnosis.second_opinion import ANSWER_BYTES_MAX, ask_program, words_of
from rankmend.errors import ConfigError
from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.process

PAGE: dict[str, object] = {"decision": "restart", "evidence": [{"text": "x" * 300}] * 8}


def _python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def test_a_program_gets_the_verdict_as_json_and_its_answer_is_shown() -> None:
    code = "import json, sys; print('I say', json.load(sys.stdin)['decision'])"

    opinion = ask_program(_python(code), PAGE)

    assert (opinion.answer, opinion.problem) == ("I say restart", "")


def test_a_program_that_reads_nothing_and_never_ends_is_ended() -> None:
    opinion = ask_program(["sleep", "600"], PAGE, timeout_s=0.2)

    assert (opinion.answer, opinion.problem) == ("", "it was ended after 0.2 s")


def test_an_endless_answer_is_cut() -> None:
    opinion = ask_program(_python("while True: print('word ' * 1000)"), PAGE)

    assert len(opinion.answer) <= ANSWER_BYTES_MAX
    assert opinion.problem == "its answer was cut at 16384 bytes"


def test_an_answer_moves_no_terminal() -> None:
    opinion = ask_program(_python(r"print('\x1b[2Jstop\nno')"), PAGE)

    assert opinion.answer == "␛[2Jstop\nno"


def test_a_program_that_fails_or_is_not_there_is_said_so() -> None:
    assert ask_program(_python("raise SystemExit(3)"), PAGE).problem == "it ended with exit code 3"
    assert "No such file" in ask_program(["/no/such/program"], PAGE).problem


def test_words_are_split_as_a_shell_splits_them_and_no_shell_runs_them(tmp_path: Path) -> None:
    words = words_of(f"{sys.executable} -S -c 'print(1)' ; touch {tmp_path}/made")

    assert words[3:5] == ["print(1)", ";"]
    assert ask_program(words, PAGE).answer == "1"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["", "  ", "model 'of"])
def test_a_command_that_is_none_is_refused(command: str) -> None:
    with pytest.raises(ConfigError, match="--second-opinion"):
        words_of(command)


def test_the_command_shows_both_answers_and_ends_by_its_own(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("step 1 loss 2.0\nsrun: error: node7: task 3: Out Of Memory\n")
    program = tmp_path / "model.py"
    program.write_text("import json, sys\nprint('stop, since', json.load(sys.stdin)['class'])\n")
    command = f"{sys.executable} -S {program}"

    done = subprocess.run(
        [sys.executable, "-m", "rankmend", "diagnose", "log", str(log), "--json", "--second-opinion", command],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )  # fmt: skip

    page = json.loads(done.stdout)
    assert done.returncode == 0
    assert page["decision"] == "restart"
    assert page["second_opinion"]["answer"] == "stop, since oom_killed"

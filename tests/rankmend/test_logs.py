"""What a log line looks like in each process, and that a console stops none of them."""

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankmend.logs import LineFormatter, LogShape, is_journal
from tests.support.faults.console import Pipe

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]


def make_record(level: int, message: str, **fields: object) -> logging.LogRecord:
    record = logging.makeLogRecord({"levelno": level, "levelname": logging.getLevelName(level)})
    record.msg = message
    vars(record).update(fields)
    return record


def test_a_line_of_the_launcher_carries_the_values_of_its_fields() -> None:
    record = make_record(logging.ERROR, "journal can't be written", error="disk full", tries=3)

    line = LineFormatter(LogShape.LAUNCHER).format(record)

    assert line == 'rankmend: ERROR: journal can\'t be written: error="disk full" tries=3'


def test_what_a_rank_said_reaches_no_terminal_as_it_is() -> None:
    record = make_record(logging.WARNING, "a standby has ended: \x1b[2Jcleared", said="\x1b]0;x")

    assert "\x1b" not in LineFormatter(LogShape.LAUNCHER).format(record)


def test_a_line_of_a_daemon_carries_the_same_fields() -> None:
    record = make_record(logging.WARNING, "job warning", warning="no spare")

    line = LineFormatter().format(record)

    assert line.endswith('level=warning message="job warning" warning="no spare"')


@pytest.mark.safety
def test_the_journal_gets_the_priority_of_every_line_and_of_each_line_of_a_traceback() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        record = make_record(logging.ERROR, "failed", exc_info=sys.exc_info())

    lines = LineFormatter(LogShape.LAUNCHER, has_priority=True).format(record).split("\n")

    assert lines[0] == "<3>rankmend: ERROR: failed"
    assert all(line.startswith("<3>") for line in lines)
    assert lines[-1] == "<3>ValueError: why"


@pytest.mark.parametrize(
    ("level", "priority"),
    [(logging.CRITICAL, 2), (logging.WARNING, 4), (logging.INFO, 6), (logging.DEBUG, 7)],
)
def test_a_level_becomes_the_priority_that_syslog_knows(level: int, priority: int) -> None:
    line = LineFormatter(has_priority=True).format(make_record(level, "text"))

    assert line.startswith(f"<{priority}>time=")


@pytest.mark.safety
def test_standard_error_is_the_journal_only_where_systemd_named_this_very_stream() -> None:
    with Path(os.devnull).open() as file:
        found = os.fstat(file.fileno())
        named = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}

        assert is_journal(file.fileno(), named)
        assert not is_journal(file.fileno(), {"JOURNAL_STREAM": f"{found.st_dev}:1"})
        assert not is_journal(file.fileno(), {})


def test_no_process_has_a_log_format_of_its_own() -> None:
    wrong = [
        str(file.relative_to(ROOT))
        for package in ("agent", "recovery", "rankmend")
        for file in (ROOT / package).rglob("*.py")
        if "basicConfig(" in file.read_text(encoding="utf-8") and file.name != "logs.py"
    ]

    assert wrong == []


TALKING = """
import logging, os, sys
from rankmend import logs
logs.configure()
for number in range(200):
    logging.warning("line %d", number, extra={"filler": "." * 100})
    print("printed", number)
os.write(int(sys.argv[1]), b"not held up")
raise RuntimeError("a traceback waits no longer than a log line")
"""


def test_a_daemon_whose_log_is_not_read_works_on_and_ends() -> None:
    console = Pipe()
    told, tell = os.pipe()
    with console.hold():
        process = subprocess.Popen(
            [sys.executable, "-c", TALKING, str(tell)],
            stdout=console.inner,
            stderr=console.inner,
            pass_fds=[tell],
            cwd=ROOT,
        )
        os.close(tell)

        assert os.read(told, 100) == b"not held up"
        assert process.wait(300) == 1
    os.close(told)
    console.close()


def test_all_that_a_daemon_said_is_flushed_at_its_end() -> None:
    console = Pipe()
    with console.hold():
        process = subprocess.Popen(
            [sys.executable, "-c", TALKING, "2"],
            stdout=console.inner,
            stderr=console.inner,
            cwd=ROOT,
        )
        console.hand_over()

    shown = console.read_all()

    assert process.wait(300) == 1
    assert shown.count(b'message="line ') == shown.count(b"printed ") == 200
    assert shown.index(b"printed 7\n") < shown.index(b'"line 8"')
    assert shown.endswith(b"RuntimeError: a traceback waits no longer than a log line\n")
    console.close()


def test_a_record_is_one_line_whatever_is_in_it() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter())
    logger = logging.Logger("test")
    logger.addHandler(handler)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("it broke", extra={"why": 'a "quoted"\nword', "plain": "x", "none": ""})

    line = stream.getvalue()
    assert line.count("\n") == 1
    assert 'level=error message="it broke" why="a \\"quoted\\"\\nword" plain=x none=""' in line
    assert "ValueError: two\\nlines" in line


def test_json_line_is_one_object_with_the_same_fields() -> None:
    record = logging.LogRecord("x", logging.WARNING, "f", 1, 'GPU "3"\nlost', None, None)
    record.node, record.at_s = "gpu-1", 1.5

    line = LineFormatter(LogShape.JSON).format(record)

    assert "\n" not in line
    fields = json.loads(line)
    assert fields.pop("time").endswith("Z")
    assert fields == {"level": "warning", "message": 'GPU "3"\nlost', "node": "gpu-1", "at_s": 1.5}

"""Runs a process or site test that failed again, alone, once all others have ended: `pytest --run-again`.

On a busy machine a test of real processes may fail by chance. One such failure must not cost the whole run, and must not
be hidden either: what passes alone is printed last, with the output of its failure, and its author adds it to
`tests/flaky.toml`. `judge` says which failures may be repeated; unit tests and those marked `safety` never are.
"""

import datetime
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.tiers import Tier, is_safety_file, tier_of

FLAKY = Path(__file__).resolve().parents[1] / "flaky.toml"
AGAIN_MAX = 3  # more in one run are no chance
AGAIN_S_MAX = 1800.0  # the longest limit of a single test


class Verdict(Enum):
    AGAIN = "runs again alone"
    UNIT = "a unit test fails for a reason"
    SAFETY = "never repeated: fencing, journals, ownership, budgets, attempts"
    KNOWN = "stands in tests/flaky.toml already"
    TOO_MANY = f"more than {AGAIN_MAX} failed"


@dataclass(frozen=True, slots=True)
class Failure:
    """A test that failed in the run with all others."""

    test: str  # its node id
    tier: Tier
    is_safety: bool
    output: str


def judge(failures: Sequence[Failure], known: Collection[str]) -> dict[str, Verdict]:
    """Return for each failed test whether it may run again, or why it may not."""
    verdicts = {}
    for failure in failures:
        if failure.tier is Tier.UNIT:
            verdicts[failure.test] = Verdict.UNIT
        elif failure.is_safety:
            verdicts[failure.test] = Verdict.SAFETY
        elif failure.test in known:
            verdicts[failure.test] = Verdict.KNOWN
        elif len(failures) > AGAIN_MAX:
            verdicts[failure.test] = Verdict.TOO_MANY
        else:
            verdicts[failure.test] = Verdict.AGAIN
    return verdicts


class FlakyTest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A test that failed beside others, and passed alone."""

    test: str  # its node id
    date: datetime.date
    first_line: str  # of the failure


class _FlakyFile(msgspec.Struct, forbid_unknown_fields=True):
    passed_only_alone: list[FlakyTest] = []


def known_flaky(file: Path = FLAKY) -> list[FlakyTest]:
    """Return the tests that once passed only alone."""
    return msgspec.toml.decode(file.read_bytes(), type=_FlakyFile).passed_only_alone


class RunAgain:
    """The part of the process that has all results: pytest's own, or the one that pytest-xdist gives them to."""

    def __init__(self, config: pytest.Config, known: Collection[FlakyTest]) -> None:
        self._config = config
        self._known = {row.test for row in known}
        self._failures: dict[str, Failure] = {}
        self._broken = False  # a file that can't be collected, or an error of pytest's
        self._verdicts: dict[str, Verdict] = {}
        self._passed_alone: list[Failure] = []
        self._failed_again: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        test = report.nodeid
        before = self._failures.get(test)  # of its set-up or call, if its end fails, too
        text = "\n".join([*([before.output] if before else []), _text_of(report)])
        # A report of a worker that died has no marks but those of the file.
        file = self._config.rootpath / test.partition("::")[0]
        is_safety = "safety" in report.keywords or is_safety_file(file)
        self._failures[test] = Failure(test, tier_of(file), is_safety, text)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._broken = self._broken or report.failed

    @pytest.hookimpl(trylast=True)  # pytest-xdist's workers have ended then
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus != pytest.ExitCode.TESTS_FAILED or self._broken:
            return
        self._verdicts = judge(list(self._failures.values()), self._known)
        if set(self._verdicts.values()) != {Verdict.AGAIN}:
            return  # the run fails in any case
        for failure in self._failures.values():
            again = self._run_alone(failure.test)
            if again is None:
                self._passed_alone.append(failure)
            else:
                self._failed_again[failure.test] = again
        if not self._failed_again:
            session.exitstatus = pytest.ExitCode.OK

    def _run_alone(self, test: str) -> str | None:
        """Return what a second run of a test prints if it fails, or None."""
        profile = self._config.getoption("--hypothesis-profile", default=None)
        command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-q", "--no-header"]
        command += [f"--hypothesis-profile={profile}"] if profile else []
        try:
            done = subprocess.run(
                [*command, test],
                cwd=self._config.rootpath,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
                timeout=AGAIN_S_MAX,
            )
        except subprocess.TimeoutExpired:
            return f"has not ended after {AGAIN_S_MAX:.0f} s"
        # A test that is skipped now has proved nothing.
        passed = done.returncode == 0 and " passed" in done.stdout.splitlines()[-1]
        return None if passed else done.stdout

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        write = terminalreporter
        for test, verdict in self._verdicts.items():
            if verdict is not Verdict.AGAIN:
                write.write_line(f"not run again: {test}: {verdict.value}")
        for test, output in self._failed_again.items():
            write.section(f"failed alone, too: {test}", sep="_")
            write.write(output)
        if self._passed_alone:
            write.section("passed only alone", sep="=")
            for failure in self._passed_alone:
                write.section(failure.test, sep="_")
                write.write_line(failure.output)
            write.write_line("add to tests/flaky.toml:")
            for line in entries(self._passed_alone):
                write.write_line(line)


def entries(failures: Sequence[Failure]) -> Iterator[str]:
    """Yield the lines that the author adds to `tests/flaky.toml`."""
    for failure in failures:
        lines = [line for line in failure.output.splitlines() if line.startswith("E ")]
        first = (lines or [failure.output.strip() or "?"])[0].removeprefix("E").strip()
        yield "[[passed_only_alone]]"
        yield f"test = {_quoted(failure.test)}"
        yield f"date = {datetime.datetime.now(datetime.timezone.utc).date()}"
        yield f"first_line = {_quoted(first)}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else " " for c in escaped) + '"'


def _text_of(report: pytest.TestReport) -> str:
    sections = [f"--- {title} ---\n{content}" for title, content in report.sections]
    return "\n".join([f"({report.when})", report.longreprtext, *sections])

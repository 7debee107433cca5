"""What becomes of a failure: a fault of chance is shown and costs no run, and no other failure is ever repeated."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.eventually import DEADLINE_S
from tests.support.run_again import Failure, Verdict, entries, judge, known_flaky
from tests.support.tiers import Tier

pytestmark = [pytest.mark.process, pytest.mark.safety]

ROOT = Path(__file__).resolve().parents[1]


def failure(test: str, tier: Tier = Tier.PROCESS, *, is_safety: bool = False) -> Failure:
    return Failure(test, tier, is_safety, "E   AssertionError: 1 == 2")


def test_failure_of_a_process_or_site_test_runs_again() -> None:
    failures = [failure("a"), failure("b", Tier.SITE)]

    assert judge(failures, ()) == {"a": Verdict.AGAIN, "b": Verdict.AGAIN}


def test_failure_of_a_unit_test_is_a_failure() -> None:
    assert judge([failure("a", Tier.UNIT)], ()) == {"a": Verdict.UNIT}


def test_failure_about_fencing_is_a_failure() -> None:
    assert judge([failure("a", is_safety=True)], ()) == {"a": Verdict.SAFETY}


def test_test_that_passed_only_alone_before_has_no_second_chance() -> None:
    assert judge([failure("a"), failure("b")], {"a"}) == {"a": Verdict.KNOWN, "b": Verdict.AGAIN}


def test_more_than_three_failures_are_no_chance() -> None:
    four = [failure(name) for name in "abcd"]

    assert set(judge(four[:3], ()).values()) == {Verdict.AGAIN}
    assert set(judge(four, ()).values()) == {Verdict.TOO_MANY}


def test_entry_to_add_can_be_read_back(tmp_path: Path) -> None:
    odd = Failure('t.py::test_x["\\"-\n]', Tier.PROCESS, False, "out\nE   ValueError: \x1b[1m'\"")

    (tmp_path / "flaky.toml").write_text("\n".join(entries([odd])))

    (row,) = known_flaky(tmp_path / "flaky.toml")
    assert (row.test, row.first_line) == ('t.py::test_x["\\"- ]', "ValueError:  [1m'\"")


def test_each_test_of_the_list_exists() -> None:
    for row in known_flaky():
        file, _separator, name = row.test.partition("::")
        text = (ROOT / file).read_text()
        assert f"def {name.rpartition('::')[2].partition('[')[0]}(" in text, row.test


# The whole: a project of a few tests, of which one passes only when it runs a second time.

CONFTEST = """
import pathlib
from tests.support.run_again import RunAgain, known_flaky

def pytest_addoption(parser):
    parser.addoption("--run-again", action="store_true")

def pytest_configure(config):
    for mark in ("process", "safety"):
        config.addinivalue_line("markers", mark)
    if config.getoption("--run-again") and not hasattr(config, "workerinput"):
        flaky = known_flaky(pathlib.Path(__file__).parent / "flaky.toml")
        config.pluginmanager.register(RunAgain(config, flaky))
"""
SECOND_TIME = """
import pathlib, pytest
pytestmark = {marks}

def test_good():
    pass

def test_second_time():
    print("what it printed")
    seen = pathlib.Path(__file__).parent / "seen"
    was_there = seen.exists()
    seen.touch()
    assert was_there, "a race"
"""
PROCESS, SAFETY = "pytest.mark.process", "[pytest.mark.process, pytest.mark.safety]"


class Project:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "flaky.toml").write_text("")

    def add(self, name: str, text: str, marks: str = PROCESS) -> None:
        (self.folder / f"{name}.py").write_text(text.replace("{marks}", marks))

    def run(self, *options: str) -> tuple[int, str]:
        workers = ("-p", "xdist") if "-n" in options else ()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *workers, "--run-again", *options],
            cwd=self.folder,
            # Other plugins than these take most of the time of such a small project.
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_test_that_passes_alone_is_shown_and_costs_no_run(
    project: Project, options: tuple[str, ...]
) -> None:
    project.add("test_console", SECOND_TIME)

    code, printed = project.run(*options)

    assert code == 0
    last = printed.partition("passed only alone")[2]
    assert "test_console.py::test_second_time" in last
    assert "a race" in last
    assert "what it printed" in last
    assert 'test = "test_console.py::test_second_time"' in last


def test_test_that_fails_alone_too_fails_the_run(project: Project) -> None:
    project.add("test_broken", "import pytest\npytestmark = {marks}\ndef test_bad(): assert 0")

    code, printed = project.run()

    assert code == 1
    assert "failed alone, too: test_broken.py::test_bad" in printed


@pytest.mark.parametrize(
    ("marks", "reason"), [(SAFETY, Verdict.SAFETY), ("[]", Verdict.UNIT)], ids=["fencing", "unit"]
)
def test_race_in_a_test_of_fencing_or_of_pure_code_fails_the_run(
    project: Project, marks: str, reason: Verdict
) -> None:
    project.add("test_fence", SECOND_TIME, marks)

    code, printed = project.run("-n", "2")

    assert code == 1
    assert f"not run again: test_fence.py::test_second_time: {reason.value}" in printed


def test_test_of_the_list_that_fails_again_fails_the_run(project: Project) -> None:
    project.add("test_console", SECOND_TIME)
    (project.folder / "flaky.toml").write_text(
        '[[passed_only_alone]]\ntest = "test_console.py::test_second_time"\n'
        'date = 2026-11-28\nfirst_line = "a race"\n'
    )

    code, printed = project.run()

    assert code == 1
    assert Verdict.KNOWN.value in printed


def test_file_that_cannot_be_imported_fails_the_run_at_once(project: Project) -> None:
    project.add("test_console", SECOND_TIME)
    project.add("test_broken", "import nothing_of_this_name")

    code, printed = project.run("--continue-on-collection-errors")

    assert code != 0
    assert "passed only alone" not in printed


def test_worker_that_dies_is_no_passed_test(project: Project) -> None:
    project.add("test_dies", "import os, pytest\npytestmark = {marks}\ndef test_x(): os._exit(3)")

    code, _printed = project.run("-n", "2")

    assert code != 0

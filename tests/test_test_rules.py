"""The rules of the tests themselves: three tiers, events instead of times, no test file that needs another."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.tiers import Tier, is_safety_file, tier_of

TESTS = Path(__file__).resolve().parent
FILES = sorted(TESTS.rglob("*.py"))
TEST_FILES = [file for file in FILES if file.name.startswith("test_")]
# Scripts that ranks run, and faults on disks: they pass time because that is what they are for.
SCRIPTS = ("system/faults/jobs/", "system/kubernetes/job.py", "system/chain/job.py")
# The only places that wait.
WAITERS = {"support/eventually.py", "support/faults/slow_disk.py"}
TIMEOUT_S_MIN = 60
CLOCKS = {"monotonic", "perf_counter", "monotonic_ns", "perf_counter_ns", "process_time"}


def name_of(file: Path) -> str:
    return file.relative_to(TESTS).as_posix()


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def is_script(file: Path) -> bool:
    return name_of(file).startswith(SCRIPTS)


def seconds_of(node: ast.expr | None, file: Path) -> float | None:
    """Return the number that an expression is, or a constant of the module that it names."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.Name):
        for statement in tree_of(file).body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                    if name == node.id and isinstance(value, int | float):
                        return float(value)
    return None


def calls_of(file: Path) -> Iterator[tuple[ast.Call, str]]:
    """Yield each call of a file with the last part of its name."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                yield node, node.func.attr
            elif isinstance(node.func, ast.Name):
                yield node, node.func.id


def test_no_test_sleeps() -> None:
    wrong = [
        f"{name_of(file)}:{call.lineno}"
        for file in FILES
        if not is_script(file) and name_of(file) not in WAITERS
        for call, name in calls_of(file)
        if name == "sleep"
        if isinstance(call.func, ast.Name)
        or (isinstance(call.func.value, ast.Name) and call.func.value.id in ("time", "asyncio"))
        if not (call.args and seconds_of(call.args[0], file) == 0)
    ]

    assert wrong == [], "wait for an event with tests.support.eventually"


def short_waits(file: Path) -> Iterator[int]:
    """Yield the lines of waits that a busy machine may need longer for.

    ``timeout`` is what the standard library's waits call it. ``timeout_s`` and the like are settings of the product.
    """
    for call, name in calls_of(file):
        seconds = [seconds_of(word.value, file) for word in call.keywords if word.arg == "timeout"]
        if name in ("wait", "join") and len(call.args) == 1 and not call.keywords:
            seconds.append(seconds_of(call.args[0], file))
        if any(limit is not None and 0 < limit < TIMEOUT_S_MIN for limit in seconds):
            yield call.lineno


def test_no_wait_ends_before_a_busy_machine_is_done() -> None:
    wrong = [
        f"{name_of(file)}:{line}"
        for file in FILES
        if not is_script(file)
        for line in short_waits(file)
    ]

    assert wrong == [], f"waits end after {TIMEOUT_S_MIN} s or later: eventually.DEADLINE_S"


def reads_clock(node: ast.AST) -> bool:
    return any(
        isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and part.func.attr in CLOCKS
        and isinstance(part.func.value, ast.Name)
        and part.func.value.id == "time"
        for part in ast.walk(node)
    )


def asserted_durations(file: Path) -> Iterator[int]:
    """Yield the lines of asserts on what a clock said in the same function."""
    for function in ast.walk(tree_of(file)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        timed = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and reads_clock(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(function):
            if isinstance(node, ast.Assert) and any(
                isinstance(part, ast.Compare)
                and not all(isinstance(sign, ast.In | ast.NotIn | ast.Is) for sign in part.ops)
                and (
                    reads_clock(part)
                    or {n.id for n in ast.walk(part) if isinstance(n, ast.Name)} & timed
                )
                for part in ast.walk(node.test)
            ):
                yield node.lineno


def test_no_test_asserts_how_long_something_took() -> None:
    wrong = [
        f"{name_of(file)}:{line}"
        for file in FILES
        if not is_script(file) and name_of(file) not in WAITERS
        for line in sorted(set(asserted_durations(file)))
    ]

    assert wrong == []


def imported_by(file: Path) -> Iterator[str]:
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_test_file_imports_another() -> None:
    modules = {
        "tests." + name_of(file).removesuffix(".py").replace("/", ".") for file in TEST_FILES
    }
    wrong = {
        name_of(file): sorted(found)
        for file in FILES
        if (found := {name for name in imported_by(file) if name in modules})
    }

    assert wrong == {}, "what test files share lives in tests/support/"


# What a test is about whose failure is never put down to chance, by the words of its name.
SAFETY = re.compile(r"fenc|lease|owner|budget|journal|two_attempts|attempts_at_once|split_brain")


def test_file_about_fencing_journals_owners_budgets_or_attempts_is_marked() -> None:
    wrong = {
        f"{name_of(file)}::{node.name}"
        for file in TEST_FILES
        if tier_of(file) is not Tier.UNIT and not is_safety_file(file)
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.startswith("test_") and SAFETY.search(node.name)
        if "pytest.mark.safety" not in {ast.unparse(mark) for mark in node.decorator_list}
    }

    assert wrong == set(), "mark the file or the test `safety`"


def test_tier_is_a_mark_of_the_file_alone() -> None:
    """A run of one tier imports no file of another, so a single test can't be of another tier than its file."""
    wrong = [
        f"{name_of(file)}:{node.lineno}"
        for file in TEST_FILES
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if {ast.unparse(mark) for mark in node.decorator_list}
        & {"pytest.mark.process", "pytest.mark.site"}
    ]

    assert wrong == []


def test_file_that_needs_torch_or_has_real_faults_is_no_unit_test() -> None:
    wrong = [
        name_of(file)
        for file in TEST_FILES
        if tier_of(file) is Tier.UNIT
        if re.search(r"pytest\.mark\.(torch|real_fault|component)\b", file.read_text())
    ]

    assert wrong == []

"""The rules of the tests themselves: three tiers, events instead of times, no test file that needs another."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from tests.support.tiers import Tier, is_safety_file, tier_of

TESTS = Path(__file__).resolve().parent
FILES = sorted(TESTS.rglob("*.py"))
TEST_FILES = [file for file in FILES if file.name.startswith("test_")]
# Programs that ranks and keepers run: passing time is what they are for.
PROGRAMS = (
    *("system/faults/jobs/", "system/kubernetes/job.py", "system/chain/job.py"),
    *("support/faults/slow_disk.py", "support/faults/hanging_disk.py", "support/ib_write_bw.py"),
    *("support/faults/checkpoint_kills.py", "support/hosts/machine.py", "fixtures/torchrun/"),
)
WAITS = "support/eventually.py"  # the only place that waits
TIMEOUT_S_MIN = 300
CLOCKS = {"monotonic", "perf_counter", "monotonic_ns", "perf_counter_ns", "process_time"}
# What a test is about whose failure is never put down to chance, by the words of its name.
SAFETY = re.compile(r"fenc|lease|owner|budget|journal|two_attempts|attempts_at_once|split_brain")


@dataclass
class Facts:
    """What the rules ask of a file. Its syntax tree is not kept: those of all files fill 200 MB."""

    sleeps: list[int] = field(default_factory=list)  # lines
    short_waits: list[int] = field(default_factory=list)
    asserted_durations: list[int] = field(default_factory=list)
    imported: set[str] = field(default_factory=set)
    tests: dict[str, set[str]] = field(default_factory=dict)  # and classes, with their marks


def name_of(file: Path) -> str:
    return file.relative_to(TESTS).as_posix()


def is_program(file: Path) -> bool:
    return name_of(file).startswith(PROGRAMS)


@cache
def facts_of(file: Path) -> Facts:
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    reads_clock = any(clock in text for clock in CLOCKS)
    facts = Facts()
    constants = dict(_constants(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Call():
                _note_call(node, constants, facts)
            case ast.ImportFrom(module=str(module), names=names):
                facts.imported.update((module, *(f"{module}.{alias.name}" for alias in names)))
            case ast.Import(names=names):
                facts.imported.update(alias.name for alias in names)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                if node.name.startswith(("test_", "Test")):
                    facts.tests[node.name] = {ast.unparse(mark) for mark in node.decorator_list}
                if reads_clock and not isinstance(node, ast.ClassDef):
                    facts.asserted_durations += _asserted_durations(node)
    return facts


def _constants(tree: ast.Module) -> Iterator[tuple[str, float]]:
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                if isinstance(value, int | float):
                    yield name, float(value)


def _note_call(call: ast.Call, constants: dict[str, float], facts: Facts) -> None:
    """Note a sleep, and a wait of the standard library, whose limit is called ``timeout`` or stands alone.

    ``timeout_s`` and the like are settings of the product, which are input.
    """

    def seconds(node: ast.expr) -> float | None:
        match node:
            case ast.Constant(value=int() | float() as value):
                return float(value)
            case ast.Name(id=name):
                return constants.get(name)
        return None

    owner, name = None, None
    match call.func:
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            pass
        case ast.Attribute(attr=name) | ast.Name(id=name):
            pass
    is_sleep = name == "sleep" and (isinstance(call.func, ast.Name) or owner in ("time", "asyncio"))
    if is_sleep and not (call.args and seconds(call.args[0]) == 0):
        facts.sleeps.append(call.lineno)
    limits = [seconds(word.value) for word in call.keywords if word.arg == "timeout"]
    if name in ("wait", "join") and len(call.args) == 1 and not call.keywords:
        limits.append(seconds(call.args[0]))
    if any(limit is not None and 0 < limit < TIMEOUT_S_MIN for limit in limits):
        facts.short_waits.append(call.lineno)


def _asserted_durations(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[int]:
    """Yield the lines of asserts that compare what a clock said in this function."""
    timed = {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and _reads_clock(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) and any(
            isinstance(part, ast.Compare)
            and not all(isinstance(sign, ast.In | ast.NotIn | ast.Is) for sign in part.ops)
            and (
                _reads_clock(part)
                or {n.id for n in ast.walk(part) if isinstance(n, ast.Name)} & timed
            )
            for part in ast.walk(node.test)
        ):
            yield node.lineno


def _reads_clock(node: ast.AST) -> bool:
    return any(
        isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and part.func.attr in CLOCKS
        and isinstance(part.func.value, ast.Name)
        and part.func.value.id == "time"
        for part in ast.walk(node)
    )


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("sleeps", "wait for an event with tests.support.eventually"),
        ("short_waits", f"a wait ends after {TIMEOUT_S_MIN} s or later: eventually.DEADLINE_S"),
        ("asserted_durations", "claim an order, not a time"),
    ],
)
def test_no_test_depends_on_how_quick_the_machine_is(kind: str, remedy: str) -> None:
    wrong = [
        f"{name_of(file)}:{line}"
        for file in FILES
        if not is_program(file) and name_of(file) != WAITS
        for line in sorted(set(getattr(facts_of(file), kind)))
    ]

    assert wrong == [], remedy


def test_no_test_file_imports_another() -> None:
    modules = {
        "tests." + name_of(file).removesuffix(".py").replace("/", ".") for file in TEST_FILES
    }
    wrong = {
        name_of(file): sorted(found)
        for file in FILES
        if (found := facts_of(file).imported & modules)
    }

    assert wrong == {}, "what test files share lives in tests/support/"


def test_file_about_fencing_journals_owners_budgets_or_attempts_is_marked() -> None:
    wrong = [
        f"{name_of(file)}::{name}"
        for file in TEST_FILES
        if tier_of(file) is not Tier.UNIT and not is_safety_file(file)
        for name, marks in facts_of(file).tests.items()
        if SAFETY.search(name) and "pytest.mark.safety" not in marks
    ]

    assert wrong == [], "mark the file or the test `safety`"


def test_tier_is_a_mark_of_the_file_alone() -> None:
    """A run of one tier imports no file of another, so a single test can't be of another tier than its file."""
    wrong = [
        f"{name_of(file)}::{name}"
        for file in TEST_FILES
        for name, marks in facts_of(file).tests.items()
        if marks & {"pytest.mark.process", "pytest.mark.site"}
    ]

    assert wrong == []


def test_file_that_needs_torch_or_stands_for_something_real_is_no_unit_test() -> None:
    wrong = [
        name_of(file)
        for file in TEST_FILES
        if tier_of(file) is Tier.UNIT and file != Path(__file__).resolve()
        if re.search(r"pytest\.mark\.(torch|real_fault|component)\b", file.read_text())
    ]

    assert wrong == []

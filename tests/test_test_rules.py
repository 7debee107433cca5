"""The rules of the tests themselves: three tiers, events instead of times, no test file that needs another."""

import ast
import builtins
import re
from collections import Counter
from collections.abc import Iterable, Iterator
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
# Calls that look again and again until a condition holds, which is their first function.
AWAITING = {"eventually", "wait_for", "wait_view", "until"}
# What a test is about whose failure is never put down to chance, by the words of its name.
SAFETY = re.compile(r"fenc|lease|owner|budget|journal|two_attempts|attempts_at_once|split_brain")


@dataclass
class Facts:
    """What the rules ask of a file. Its syntax tree is not kept: those of all files fill 200 MB."""

    sleeps: list[int] = field(default_factory=list)  # lines
    short_waits: list[int] = field(default_factory=list)
    asserted_durations: list[int] = field(default_factory=list)
    read_twice: list[int] = field(default_factory=list)  # in one expression of a condition
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
    nodes = [*ast.walk(tree)]
    facts = Facts(read_twice=[*_conditions_that_read_twice(nodes)])
    constants = dict(_constants(tree))
    for node in nodes:
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


Function = ast.FunctionDef | ast.Lambda


def _conditions_that_read_twice(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """Yield the lines of awaited conditions in which one expression makes the same call twice."""
    functions: dict[str, list[Function]] = {}
    awaited: list[Function] = []
    calls = []
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            functions.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Call) and _name_of_call(node) in AWAITING:
            calls.append(node)
    for call in calls:
        given = (
            [part] if isinstance(part, ast.Lambda) else functions.get(part.id, [])
            for part in call.args
            if isinstance(part, ast.Lambda | ast.Name)
        )
        awaited += next((found for found in given if found), [])
    for function in awaited:
        own = _own_names(function)
        for expression in _expressions(function):
            if any(count > 1 for count in Counter(_calls(expression, own)).values()):
                yield expression.lineno


def _name_of_call(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _own_names(function: Function) -> set[str]:
    """Return what a function binds itself: a call on such a name may be another one each time."""
    names = {argument.arg for argument in ast.walk(function) if isinstance(argument, ast.arg)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _expressions(function: Function) -> Iterator[ast.expr]:
    if isinstance(function, ast.Lambda):
        yield function.body
        return
    for statement in ast.walk(function):
        if isinstance(statement, ast.Assert):
            yield statement.test  # its message is read when the test has failed
        elif isinstance(statement, ast.stmt):
            yield from (
                part for part in ast.iter_child_nodes(statement) if isinstance(part, ast.expr)
            )


def _calls(expression: ast.expr, own: set[str]) -> Iterator[str]:
    for node in ast.walk(expression):
        if isinstance(node, ast.Call) and not isinstance(node.func, ast.Name | ast.Attribute):
            continue
        if isinstance(node, ast.Call) and _name_of_call(node) not in dir(builtins):
            parts = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            if parts and not parts & own:
                yield ast.unparse(node)


@pytest.mark.parametrize(
    ("condition", "reads_twice"),
    [
        ("lambda: set(ranks(bed)) == {'0'} and ranks(bed)['0'] != pid", True),
        ("lambda: (found := ranks(bed)) and found['0'] != pid", False),
        ("lambda: ranks(one) and ranks(two)", False),
        ("lambda: all(is_up(bed) for bed in beds) and all(is_up(bed) for bed in others)", False),
        ("lambda: len(left) == len(left) + 1", False),
        ("named", True),
    ],
)
def test_condition_that_reads_a_state_twice_is_found(condition: str, reads_twice: bool) -> None:
    text = f"def named():\n    return page() and page()[0]\neventually({condition}, lambda: f'{{x()}} {{x()}}')"

    assert bool([*_conditions_that_read_twice(ast.walk(ast.parse(text)))]) is reads_twice


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("sleeps", "wait for an event with tests.support.eventually"),
        ("short_waits", f"a wait ends after {TIMEOUT_S_MIN} s or later: eventually.DEADLINE_S"),
        ("asserted_durations", "claim an order, not a time"),
        ("read_twice", "what is awaited changes between two reads: read it once, into a name"),
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

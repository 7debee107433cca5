"""The rules that no single file shows: who may import what, and what stays pure."""

import ast
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from rankmend.cli import COMMANDS
from rankmend.hook import layout
from recovery.messages.exchange import ORDER_ENVIRONMENT
from tests.support.modules import FILES, PACKAGES, ROOT, module_name

# Layer -> layers that it may import, itself included. What is not named here may not be.
ALLOWED = {
    "rankmend.cli": {"rankmend.cli", "agent", "recovery", "detectors", "rankmend"},
    "agent": {"agent", "detectors", "rankmend"},
    "recovery": {"recovery", "detectors", "rankmend"},
    "detectors": {"detectors", "rankmend"},
    "rankmend": {"rankmend"},
}
# What a module says of itself in its docstring: "Pure." or "Pure: ...".
CALLS_ITSELF_PURE = re.compile(r"\bPure[.:;]|\ba pure\b|\bas a pure\b")
# Clock, files, network, processes, logs and randomness of the standard library, and what waits.
IMPURE = {
    *("asyncio", "concurrent", "ctypes", "fcntl", "ftplib", "glob", "http", "io"),
    *("logging", "mmap", "multiprocessing", "os", "pathlib", "platform", "psutil", "queue"),
    *("random", "resource", "secrets", "select", "selectors", "shutil", "signal", "smtplib"),
    *("socket", "socketserver", "sqlite3", "ssl", "subprocess", "sys", "tempfile", "threading"),
    *("time", "urllib", "warnings"),
}
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "breakpoint", "__import__"}
IMPURE_METHODS = {"now", "utcnow", "today", "uuid1", "uuid4"}  # of datetime, date and uuid
HOOK = [ROOT / "rankmend/__init__.py", *sorted((ROOT / "rankmend/hook").rglob("*.py"))]
# Runs under the user's interpreter when PyTorch is there, and never in a rank.
NEEDS_TORCH = ROOT / "rankmend/hook/store_host.py"
BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "misc", "base"}


def layer_of(module: str) -> str:
    if module in ("rankmend.__main__", "rankmend.cli") or module.startswith("rankmend.cli."):
        return "rankmend.cli"
    return module.partition(".")[0]


@dataclass(frozen=True)
class Source:
    """What the rules ask of a file. Kept instead of its syntax tree: those of all files fill 200 MB."""

    docstring: str
    imports: tuple[ast.Import | ast.ImportFrom, ...]
    classes: tuple[str, ...]  # those of the module itself, not of its classes and functions
    bound: frozenset[str]  # the names that it binds anywhere, but for those that it imports
    functions_called: frozenset[str]
    methods_called: frozenset[str]
    texts: frozenset[str]


@cache
def source_of(file: Path) -> Source:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    definitions = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    stored = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    constants = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return Source(
        docstring=ast.get_docstring(tree) or "",
        imports=tuple(n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)),
        classes=tuple(n.name for n in tree.body if isinstance(n, ast.ClassDef)),
        bound=frozenset([*stored, *(n.name for n in nodes if isinstance(n, definitions))]),
        functions_called=frozenset(f.id for f in called if isinstance(f, ast.Name)),
        methods_called=frozenset(f.attr for f in called if isinstance(f, ast.Attribute)),
        texts=frozenset(value for value in constants if isinstance(value, str)),
    )


@cache
def imports_of(file: Path) -> tuple[str, ...]:
    """Return every module that a file imports, also inside functions, in dotted form."""
    return tuple(sorted(set(_imports(source_of(file).imports, file))))


def _imports(nodes: Iterable[ast.AST], file: Path) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: imports are absolute"
            assert node.module is not None
            yield node.module
            for alias in node.names:  # a name may be a module, too
                if is_ours(f"{node.module}.{alias.name}"):
                    yield f"{node.module}.{alias.name}"


@cache
def is_ours(module: str) -> bool:
    path = ROOT.joinpath(*module.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def file_of(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"


@cache
def is_pure(file: Path) -> bool:
    if layer_of(module_name(file)) == "detectors":
        return True
    # Every worker asks this of every file when it collects the tests: few need to be parsed for it.
    is_said = CALLS_ITSELF_PURE.search(file.read_text(encoding="utf-8")) is not None
    return is_said and CALLS_ITSELF_PURE.search(source_of(file).docstring) is not None


def test_imports_point_right_only() -> None:
    wrong = [
        f"{module_name(file)} imports {imported}"
        for file in FILES
        for imported in imports_of(file)
        if layer_of(imported) in ALLOWED
        and layer_of(imported) not in ALLOWED[layer_of(module_name(file))]
    ]

    assert wrong == []


def _imports_at_import(file: Path) -> set[str]:
    """Return what a file imports when it is imported itself."""
    nodes = [
        n for n in ast.parse(file.read_text()).body if isinstance(n, ast.Import | ast.ImportFrom)
    ]
    return set(_imports(nodes, file))


def test_help_of_each_command_needs_only_rankmend() -> None:
    """In a package the parts are put on the path when a command runs; manual pages and completion read its help alone."""
    reached, left = set(), {module for module, _name, _help in COMMANDS.values()}
    while left:
        module = left.pop()
        reached.add(module)
        if layer_of(module) not in {"agent", "detectors", "recovery"}:
            left |= {
                name for name in _imports_at_import(file_of(module)) if is_ours(name)
            } - reached

    assert {
        name for name in reached if layer_of(name) in {"agent", "detectors", "recovery"}
    } == set()


def test_pure_modules_reach_no_clock_file_socket_log_or_chance() -> None:
    wrong = []
    for start in filter(is_pure, FILES):
        reached, waiting = {start}, [start]
        while waiting:  # also through other modules of ours, however far
            file = waiting.pop()
            for imported in imports_of(file):
                if imported.partition(".")[0] in IMPURE and imported != "urllib.parse":
                    wrong.append(f"{module_name(start)} reaches {imported} in {module_name(file)}")
                # The package rankmend is the hook, which `rankmend.errors` loads with it.
                if is_ours(imported) and imported != "rankmend":
                    target = file_of(imported)
                    if target not in reached:
                        reached.add(target)
                        waiting.append(target)

    assert wrong == []


@pytest.mark.parametrize("file", [file for file in FILES if is_pure(file)], ids=module_name)
def test_pure_module_calls_nothing_that_looks_at_the_world(file: Path) -> None:
    source = source_of(file)

    assert source.functions_called & IMPURE_CALLS == set()
    assert source.methods_called & IMPURE_METHODS == set()


@pytest.mark.parametrize("file", HOOK, ids=module_name)
def test_hook_file_parses_under_python_3_8_and_imports_the_standard_library_only(
    file: Path,
) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 8))

    allowed = {*sys.stdlib_module_names, "imp", "rankmend"}  # imp: for Python 2
    if file == NEEDS_TORCH:
        allowed.add("torch")
    imported = {name.partition(".")[0] for name in _imports(ast.walk(tree), file)}
    assert imported <= allowed
    ours = {name for name in imports_of(file) if name.startswith("rankmend.")}
    assert {name for name in ours if not name.startswith("rankmend.hook")} == set()


def test_no_module_is_named_for_having_no_name() -> None:
    names = {part for file in FILES for part in file.relative_to(ROOT).with_suffix("").parts}

    assert names & BANNED_NAMES == set()


def test_each_public_class_has_a_name_of_its_own() -> None:
    files: dict[str, list[str]] = {}
    for file in FILES:
        for name in source_of(file).classes:
            if not name.startswith("_"):
                files.setdefault(name, []).append(module_name(file))

    assert {name: found for name, found in files.items() if len(found) > 1} == {}


def test_every_name_is_imported_from_the_module_that_defines_it() -> None:
    wrong = [
        f"{module_name(file)} imports {alias.name} from {node.module}"
        for file in FILES
        for node in source_of(file).imports
        if isinstance(node, ast.ImportFrom) and node.module and is_ours(node.module)
        for alias in node.names
        if not is_ours(f"{node.module}.{alias.name}")
        if alias.name not in source_of(file_of(node.module)).bound
    ]

    assert wrong == []


def folders_of(package: str) -> dict[str, set[str]]:
    """Return which rooms of a package, its folders and single modules, import which others."""
    arrows: dict[str, set[str]] = {}
    for file in (ROOT / package).rglob("*.py"):
        parts = module_name(file).split(".")
        if len(parts) > 1:
            for imported in imports_of(file):
                there = imported.split(".")
                if there[0] == package and len(there) > 1 and there[1] != parts[1]:
                    arrows.setdefault(parts[1], set()).add(there[1])
    return arrows


@pytest.mark.parametrize("package", PACKAGES)
def test_no_room_of_a_package_imports_one_that_imports_it(package: str) -> None:
    arrows = folders_of(package)
    left = dict(arrows)
    while True:  # take away those that import none that is left
        ground = [room for room, imported in left.items() if not imported & left.keys()]
        if not ground:
            break
        for room in ground:
            del left[room]

    assert left == {}


def test_no_files_import_each_other_in_a_circle() -> None:
    """Also by imports inside functions and for types alone: a circle is one page of the design in several files."""
    files = {module_name(file): file for file in FILES}
    # What a module of the hook calls is the user's `import rankmend`, which imports it only where it has work for it.
    left = {
        module: set(imports_of(file)) & files.keys() - {module}
        for module, file in files.items()
        if module != "rankmend"
    }
    while ground := [module for module, imported in left.items() if not imported & left.keys()]:
        for module in ground:
            del left[module]

    circles = {module: sorted(imported & left.keys()) for module, imported in left.items()}
    assert circles == {}, "in a circle, or above one"


def test_no_log_line_has_a_field_that_every_record_has() -> None:
    """`logging` raises KeyError for it, and only where the line's level is on."""
    own = {*logging.makeLogRecord({}).__dict__, "message", "asctime"}
    wrong = [
        f"{module_name(file)}:{node.lineno}: {key.value}"
        for file in FILES
        if "extra=" in file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.keyword)
        and node.arg == "extra"
        and isinstance(node.value, ast.Dict)
        for key in node.value.keys
        if isinstance(key, ast.Constant) and key.value in own
    ]

    assert wrong == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        module_name(file) for file in FILES if file.stat().st_size and not source_of(file).docstring
    ]

    assert silent == []


def _documented_variables(heading: str) -> set[str]:
    document = (ROOT / "docs/reference/environment.md").read_text(encoding="utf-8")
    section = document.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name.strip(" `") for row in rows for name in row.split(",")}


def test_variables_of_the_hook_are_those_of_the_document() -> None:
    names = {value for name, value in vars(layout).items() if name.startswith("ENV_")}

    assert _documented_variables("What a rank finds: from rankmend") == names
    assert names >= ORDER_ENVIRONMENT


def test_every_variable_of_rankmend_in_the_code_is_documented() -> None:
    headings = ("What a rank finds: from rankmend", "What rankmend's own commands read")
    documented = set().union(*(_documented_variables(heading) for heading in headings))
    used = {
        text
        for file in FILES
        for text in source_of(file).texts
        if text.startswith("RANKMEND_")
        and not text.endswith("_")
        and text.replace("_", "A").isalpha()
    }

    assert used - documented == set()

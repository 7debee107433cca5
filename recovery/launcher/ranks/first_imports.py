"""What a script is about to import, read from its text: the fork server's list in a script's first run.

Taken are the imports before the first statement that does anything else. A fresh rank makes them before it runs any line
that could set a variable, change `sys.path` or start something, so one process may make them for all ranks. A
script's own modules end the list, because they may do all of this. The server looks at itself after each package
(`rankmend.hook.fork_server`), and ends at the first one that a fork would break.
"""

import ast
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

SCRIPT_BYTES_MAX: Final = 1 << 20
_STATEMENTS_MAX: Final = 500
_OURS: Final = "rankmend"  # the server has it, and a rank's is its own
_NEVER: Final = ("__future__", "antigravity", "this")
# The first optimizer of PyTorch imports it, a second in each rank.
_OPTIMIZER: Final = "torch._dynamo"
# A script that sets variables may mean those that it reads at import.
_ENVIRONMENT: Final = "environ"
_SETTERS: Final = ("putenv", "unsetenv")
_READERS: Final = ("get", "copy", "items", "keys", "values")

Statement = tuple[str, tuple[str, ...]]  # `from name import names`; no names: `import name`


def read_first_imports(script: Path) -> tuple[Statement, ...]:
    """Return what the script imports first; empty where that can't be read from its text."""
    try:
        with script.open("rb") as file:
            source = file.read(SCRIPT_BYTES_MAX + 1)
        if len(source) > SCRIPT_BYTES_MAX:
            return ()
        text = source.decode()
        return first_imports(text, lambda name: _is_beside(script, name))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        log.info("no imports are read from %s: %r", script, error)
        return ()


def first_imports(text: str, is_own: Callable[[str], bool]) -> tuple[Statement, ...]:
    """Return the imports of this source before its first other statement, or before the first that ``is_own``.

    Empty where all are Python's own: ranks import those in no time.
    """
    found: list[Statement] = []
    tree = ast.parse(text)
    for statement in _leading(tree.body):
        names = _names(statement)
        if names is None or any(is_own(name.partition(".")[0]) for name, _parts in names):
            break
        found += [one for one in names if one[0].partition(".")[0] not in (_OURS, *_NEVER)]
        if len(found) >= _STATEMENTS_MAX:
            break
    packages = {name.partition(".")[0] for name, _parts in found}
    if packages <= sys.stdlib_module_names:
        return ()
    if "torch" in packages and "optim" in text and not _sets_variables(tree):
        found.append((_OPTIMIZER, ()))
    return tuple(found)


def _leading(body: Sequence[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    for statement in body:
        match statement:
            case ast.Import() | ast.ImportFrom():
                yield statement
            case ast.Expr(value=ast.Constant()):
                pass  # the docstring
            case _:
                return


def _sets_variables(tree: ast.Module) -> bool:
    """Return whether the script may set a variable; reading one, such as LOCAL_RANK, is no reason."""
    read: set[int] = set()
    named: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in _SETTERS:
                return True
            case ast.Subscript(value=value, ctx=ast.Load()):
                read.add(id(value))
            case ast.Attribute(value=value, attr=attr) if attr in _READERS:
                read.add(id(value))
            case ast.Compare(comparators=values):  # "RANK" in os.environ
                read.update(id(value) for value in values)
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) if name == _ENVIRONMENT:
                named.add(id(node))
            case ast.alias(name=name) if name in _SETTERS:
                return True
    return bool(named - read)


def _names(statement: ast.Import | ast.ImportFrom) -> list[Statement] | None:
    """Return what a statement imports; None for what lies beside the script."""
    if isinstance(statement, ast.Import):
        return [(alias.name, ()) for alias in statement.names]
    if statement.level or statement.module is None:
        return None
    return [(statement.module, tuple(alias.name for alias in statement.names if alias.name != "*"))]


def _is_beside(script: Path, name: str) -> bool:
    """Return whether the folder of the script, the first that Python searches, may have this module."""
    return (
        next(script.parent.glob(f"{name}.*"), None) is not None or (script.parent / name).exists()
    )


def is_package_file(origin: str) -> bool:
    """Return whether a module found there belongs to an installed package, not to Python itself."""
    return "/site-packages/" in origin or "/dist-packages/" in origin

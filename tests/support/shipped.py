"""What people get: the files under deploy/ (units, rules, configurations, programs), and the texts of the product."""

import ast
import importlib.util
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
HISTORY = ROOT / "docs/internals/history.md"
"""Names commands, files and paths of its time: some are no more."""
SOURCES = sorted(
    path
    for folder in ("agent", "detectors", "rankmend", "recovery")
    for path in (ROOT / folder).rglob("*.py")
)


def shipped_files() -> list[Path]:
    """Return them all, without what Python has compiled."""
    return sorted(
        path for path in DEPLOY.rglob("*") if path.is_file() and path.parent.name != "__pycache__"
    )


def texts_in(source: str) -> Iterator[str]:
    """Yield the strings of a module; what is filled in stands as WORD."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "WORD"
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def texts_of_code() -> tuple[str, ...]:
    """Return the strings of all modules that people install."""
    return tuple(text for path in SOURCES for text in texts_in(path.read_text(encoding="utf-8")))


@cache
def load_generator() -> ModuleType:
    """Return the program that writes the rules for Prometheus from the tables of findings."""
    path = ROOT / "deploy" / "prometheus" / "generate.py"
    spec = importlib.util.spec_from_file_location("generate_rules", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module

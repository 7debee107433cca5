"""What `make test` chooses: each kind of real fault and each real component has one test, and CONTRIBUTING lists it."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = next(folder for folder in Path(__file__).parents if (folder / "CONTRIBUTING.md").is_file())


@cache
def marked() -> dict[str, Counter[str]]:
    """Count the tests marked `real_fault` and `component` by what their mark names."""
    found: dict[str, Counter[str]] = {"real_fault": Counter(), "component": Counter()}
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if any(name in text for name in found) else ():
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="real_fault" | "component" as mark),
                    args=[ast.Constant(value=str(name))],
                ):
                    found[mark][name] += 1
    return found


@pytest.mark.parametrize(
    ("mark", "heading"), [("real_fault", "the kinds:"), ("component", "the components:")]
)
def test_what_make_test_chooses_is_what_contributing_lists(mark: str, heading: str) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    listed = re.findall(r"`([^`]+)`", re.split(r"\n\n|\n- ", text.partition(heading)[2])[0])

    assert listed, "CONTRIBUTING.md has the list"
    assert marked()[mark] == Counter(listed)

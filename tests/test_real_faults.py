"""Each kind of real fault has one test that `make test` runs."""

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = next(one for one in Path(__file__).parents if (one / "CONTRIBUTING.md").is_file())


def kinds_of_tests() -> Counter[str]:
    """Count the tests marked `real_fault` by their kind."""
    kinds = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "real_fault" in text else ():
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="real_fault"), args=[ast.Constant(value=str(kind))]
                ):
                    kinds.append(kind)
    return Counter(kinds)


def test_each_kind_of_real_fault_has_one_test_and_contributing_lists_it() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    _before, _colon, after = text.partition("The kinds:")
    listed = re.findall(r"`([^`]+)`", after.partition("\n\n")[0])

    kinds = kinds_of_tests()

    assert listed, "CONTRIBUTING.md has the list"
    assert sorted(kinds.elements()) == sorted(listed)
    assert set(kinds.values()) == {1}

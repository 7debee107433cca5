"""Nothing that rankmend prints or ships names a package, image or repository of ours that others could register."""

import re

import pytest

from tests.support.shipped import HISTORY, ROOT, shipped_files

FOLDERS = ("agent", "deploy", "detectors", "docs", "examples", "rankmend", "recovery")
SUFFIXES = (".conf", ".json", ".md", ".py", ".service", ".sh", ".toml", ".yaml", ".yml")
FOREIGN = re.compile(
    r"(?:github|gitlab)\.com/rankmend|(?:docker|ghcr|quay)\.io/(?:\w+/)*rankmend|pypi\.org/project/rankmend"
    r"|readthedocs\.io|https?://(?:\w+\.)*rankmend\.(?!example\b)\w+"
    r"|(?:pip|pipx|uv tool|uv pip) install (?:-\S+ )*[\"']?rankmend\b(?!\S*\.(?:whl|deb|rpm))"
    r"|apt(?:-get)? install (?:-\S+ )*rankmend\b"
)


def found_in(text: str) -> list[str]:
    return [found[0] for found in FOREIGN.finditer(text)]


def test_no_shipped_text_names_what_others_could_register() -> None:
    files = {
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SUFFIXES and path != HISTORY and "design" not in path.parts
    } | {*shipped_files(), ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "pyproject.toml"}
    named = {
        str(path.relative_to(ROOT)): found
        for path in files
        if (found := found_in(path.read_text(encoding="utf-8")))
    }

    assert len(files) > 500
    assert named == {}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("pip install 'rankmend[agent]'", 1),
        ("pipx install rankmend", 1),
        ("pip install './rankmend-0.1.0-py3-none-any.whl[agent]'", 0),
        ("pip install '.[agent]'", 0),
        ("https://github.com/rankmend/rankmend/blob/main", 1),
        ("https://controller.example:9477/docs", 0),
        ("apt-get install rankmend", 1),
        ("apt install ./rankmend_NEW.deb", 0),
    ],
)
def test_such_a_name_is_found(text: str, count: int) -> None:
    assert len(found_in(text)) == count

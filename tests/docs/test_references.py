"""Every link in the documentation, and every path of a page that the code names, leads somewhere."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankmend.version import RANKMEND_VERSION
from tests.support.shipped import HISTORY

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *(ROOT / name for name in ("bench/README.md", "examples/README.md")),
    *sorted(DOCS.rglob("*.md")),
]
CODE = ("agent", "bench", "deploy", "detectors", "examples", "rankmend", "recovery", "tests")
SUFFIXES = (".py", ".toml", ".yml", ".service", ".md", ".conf")
FOREIGN = (
    *("docs/alerting/latest", "docs/nic-health-monitor"),
    *(
        "docs/stable",
        "docs/current",
        "docs/http",
        "docs/tasks",
        "docs/concepts",
        "docs/transformers",
    ),  # as programs print them in logs
)
"""Paths on other projects' sites that begin like ours."""

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SOURCE = re.compile(
    r"`((?:agent|bench|deploy|detectors|examples|rankmend|recovery|tests)/[\w/.-]+)`"
)
NAMED = re.compile(r"\bdocs/[a-z0-9-]+(?:/[a-z0-9-]+)*(?:\.md|\.svg|\.py)?")


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub makes from a page's headings."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return {_anchor(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def _anchor(heading: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


def broken_links(page: Path) -> Iterator[str]:
    """Yield each relative link of a page whose file or heading does not exist."""
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_and_anchor_of_a_page_exists(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_a_link_to_a_missing_page_or_heading_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b` (c)\n[ok](#a-b-c) [no](#d) [no](gone.md) [web](https://h/x)\n")

    assert list(broken_links(page)) == ["#d", "gone.md"]


def _sources() -> Iterator[Path]:
    for folder in CODE:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in SUFFIXES and path.is_file():
                yield path
    yield ROOT / "Makefile"


def test_every_page_that_code_names_exists() -> None:
    named = {
        (str(path.relative_to(ROOT)), name)
        for path in _sources()
        for name in NAMED.findall(path.read_text(encoding="utf-8"))
        if not name.startswith(FOREIGN)
    }

    assert len(named) > 50
    assert {(path, name) for path, name in named if not (ROOT / name).exists()} == set()


def test_the_index_links_to_every_page() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in LINK.findall(index)}

    assert [page for page in DOCS.rglob("*.md") if page not in {*linked, DOCS / "README.md"}] == []


@pytest.mark.parametrize(
    "page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS))
)
def test_a_page_says_in_its_first_line_for_whom_it_is(page: Path) -> None:
    title, first = [line for line in page.read_text(encoding="utf-8").splitlines() if line][:2]

    assert title.startswith("# ")
    assert first.startswith("For "), first


def test_every_source_file_that_a_page_names_exists() -> None:
    pages = [page for page in PAGES if page != HISTORY]
    named = {
        (str(page.relative_to(ROOT)), name)
        for page in pages
        for name in SOURCE.findall(page.read_text(encoding="utf-8"))
    }

    assert len(named) > 50
    assert {one for one in named if not _is_there(one[1])} == set()


def test_the_changelog_begins_with_this_version_in_at_most_120_lines() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heading, _, section = text.partition("\n## ")[2].partition("\n")

    assert re.fullmatch(r"(\S+) \((?:unreleased|\d{4}-\d\d-\d\d)\)", heading)
    assert heading.partition(" ")[0] == RANKMEND_VERSION
    assert len(section.partition("\n## ")[0].splitlines()) <= 120


def test_the_readme_is_short_enough_to_be_read() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")

    assert len(text.splitlines()) <= 90
    assert len(text.split()) <= 750


def test_the_module_map_names_every_folder_of_code() -> None:
    text = (DOCS / "internals/architecture.md").read_text(encoding="utf-8")
    section = text.partition("\n## Module map\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z_/]+)/`", section))
    folders = {
        path.relative_to(ROOT).as_posix()
        for package in ("agent", "detectors", "recovery", "rankmend")
        for path in (ROOT / package).iterdir()
        if path.is_dir() and any(path.iterdir()) and path.name != "__pycache__"
    }

    assert folders - named == set()
    assert {name for name in named if not (ROOT / name).is_dir()} == set()


def _is_there(name: str) -> bool:
    """Return whether a file exists; the page of hazards names tests by their path below tests/."""
    return (ROOT / name).exists() or (ROOT / "tests" / name).exists()

"""The documentation in the console: every page in the navigation, every link inside leads somewhere, nothing that a browser refuses."""

import posixpath
import re
from functools import cache
from pathlib import Path

import pytest

from recovery.console.manual import (
    DOCS,
    INDEX,
    ManualPage,
    is_outside,
    pictures,
    read_page,
    sections,
)

PATHS = [INDEX, *(entry.path for section in sections() for entry in section.entries)]
AUDIENCE = re.compile(r"^For \w+", re.MULTILINE)


@cache
def body_of(path: str) -> str:
    page = read_page(path)
    assert page is not None
    return page.body


def test_the_navigation_has_every_page_once_by_role() -> None:
    files = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}

    assert sorted(PATHS) == sorted(files)
    assert [section.title for section in sections()] == [
        "Start here",
        "Use",
        "Operate",
        "Reference",
        "Internals",
    ]
    assert [entry.path for entry in sections()[0].entries][:2] == ["start.md", "quick-start.md"]


@pytest.mark.parametrize("path", PATHS)
def test_each_page_says_in_its_first_lines_for_whom_it_is(path: str) -> None:
    head = (DOCS / path).read_text(encoding="utf-8").splitlines()[1:5]

    assert AUDIENCE.search("\n".join(head)), f"{path} begins with: {head}"


@pytest.mark.parametrize("path", PATHS)
def test_every_link_of_a_page_leads_to_a_heading_or_a_picture(path: str) -> None:
    lost = []
    for link in re.findall(r'(?:href|src)="([^"]+)"', body_of(path)):
        name, _, heading = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), name)) if name else path
        if target in pictures():
            continue
        if target not in PATHS or (heading and f'id="{heading}"' not in body_of(target)):
            lost.append(link)

    assert lost == []


@pytest.mark.parametrize("path", PATHS)
def test_no_page_has_styles_scripts_or_comments_of_its_own(path: str) -> None:
    body = body_of(path)

    assert not re.search(r"<(script|style|iframe|link|form)\b|<[^>]* style=", body)
    assert "<!--" not in body
    assert "&lt;!--" not in re.sub(r"<(code|pre)>.*?</\1>", "", body, flags=re.DOTALL)
    assert not re.search(r'src="[a-z]+:', body)


def _page(folder: Path, text: str) -> ManualPage:
    (folder / INDEX).write_text("# Index\n\n## Use\n\n[a](a.md) [b](b.md)\n")
    (folder / "a.md").write_text(text)
    (folder / "b.md").write_text("# B\n")
    page = read_page("a.md", folder)
    assert page is not None
    return page


def test_html_in_a_page_is_text_and_line_breaks_are_kept(tmp_path: Path) -> None:
    page = _page(tmp_path, "# A\n\n<script>x</script>\n\na<br>b <b>c</b>\n\n<!-- mark -->\n")

    assert "&lt;script&gt;" in page.body
    assert "a<br>b &lt;b&gt;c" in page.body
    assert "mark" not in page.body


def test_a_link_that_leaves_the_documentation_is_text_with_its_path(tmp_path: Path) -> None:
    page = _page(tmp_path, "# A\n\n[one](../deploy/x.toml) [two](b.md)\n")

    assert '<span title="in the repository: deploy/x.toml">one</span>' in page.body
    assert '<a href="b.md">two</a>' in page.body
    assert is_outside("use/a.md", "../../x")
    assert not is_outside("use/a.md", "../x")


def test_pages_follow_each_other_in_the_order_of_the_index(tmp_path: Path) -> None:
    page = _page(tmp_path, "# `A` b\n")

    assert page.title == "A b"
    assert page.before is not None
    assert page.before.path == INDEX
    assert page.after is not None
    assert page.after.path == "b.md"
    assert read_page("c.md", tmp_path) is None
    assert read_page("../a.md", tmp_path) is None


def test_headings_of_one_text_have_names_of_their_own(tmp_path: Path) -> None:
    page = _page(tmp_path, "# A\n\n## `x` (y)\n\n## `x` (y)\n")

    assert '<h2 id="x-y">' in page.body
    assert '<h2 id="x-y-1">' in page.body

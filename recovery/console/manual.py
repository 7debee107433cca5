"""The documentation as pages of the console: Markdown below docs/, rendered as it is requested.

docs/README.md is the index. Its sections and the order of its links make the navigation, here and on the site that
`make site` builds; nothing else lists the pages. Addresses are the files' own paths, so relative links need no change. What
lies outside docs/ isn't in a wheel: a link to it becomes its text.
"""

import html
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rankmend.errors import ConfigError
from rankmend.parts_path import PARTS_ROOT

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

DOCS: Final = Path(PARTS_ROOT) / "docs"
INDEX: Final = "README.md"
PICTURES: Final = {".png": "image/png", ".svg": "image/svg+xml"}
_KEPT_MAX: Final = 8  # rendered pages; the longest, of the findings' runbooks, has 600 kB
_MARKUP: Final = re.compile(
    r"<br ?/?>"
)  # the only tag that our pages use; comments mark generated parts


@dataclass(frozen=True, slots=True)
class ManualEntry:
    """A page in the navigation."""

    path: str  # below docs/, with its suffix
    title: str


@dataclass(frozen=True, slots=True)
class ManualSection:
    title: str
    entries: tuple[ManualEntry, ...]


@dataclass(frozen=True, slots=True)
class ManualPage:
    title: str
    body: str  # HTML
    before: ManualEntry | None
    after: ManualEntry | None


@cache
def sections(docs: Path = DOCS) -> tuple[ManualSection, ...]:
    """Return the navigation: each page stands where the index names it first."""
    found: list[tuple[str, list[ManualEntry]]] = []
    seen = {INDEX}
    tokens = _parser().parse((docs / INDEX).read_text(encoding="utf-8"))
    for index, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag == "h2":
            found.append((_plain(tokens[index + 1]).partition(":")[0], []))
        for link in _links_of(token):
            path, _, _anchor = link.partition("#")
            if found and path not in seen and path.endswith(".md") and not is_outside(INDEX, path):
                seen.add(path)
                found[-1][1].append(ManualEntry(path, _title_of(docs / path)))
    return tuple(ManualSection(title, tuple(entries)) for title, entries in found if entries)


@lru_cache(_KEPT_MAX)
def read_page(path: str, docs: Path = DOCS) -> ManualPage | None:
    """Return a page of the navigation, or the index; None: there is no such page."""
    order = [ManualEntry(INDEX, _title_of(docs / INDEX))] + [
        entry for section in sections(docs) for entry in section.entries
    ]
    place = next((index for index, entry in enumerate(order) if entry.path == path), None)
    if place is None:
        return None
    parser = _parser()
    tokens = parser.parse((docs / path).read_text(encoding="utf-8"))
    _add_anchors(tokens)
    for token in tokens:
        _cut_links(token, path)
        if token.attrs.pop(
            "style", ""
        ):  # of a column; the console's pages allow no styles of their own
            token.attrs["class"] = "n"
    return ManualPage(
        order[place].title,
        parser.renderer.render(tokens, parser.options, {}),
        order[place - 1] if place > 0 else None,
        order[place + 1] if place + 1 < len(order) else None,
    )


@cache
def pictures(docs: Path = DOCS) -> Mapping[str, Path]:
    """Return the pictures by their paths below docs/."""
    return {
        path.relative_to(docs).as_posix(): path
        for path in docs.rglob("*")
        if path.suffix in PICTURES
    }


def is_outside(page: str, link: str) -> bool:
    """Return whether a relative link of a page leaves docs/, and with it what a wheel has."""
    path = link.partition("#")[0]
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path)).startswith("..")


def anchor(heading: str) -> str:
    """Return the name that GitHub gives to a heading with this text."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def _parser() -> "MarkdownIt":
    try:
        from markdown_it import MarkdownIt  # noqa: PLC0415 - only the console's documentation needs it
    except ImportError as error:
        raise ConfigError(
            "the documentation needs markdown-it-py, which is not installed: pip install markdown-it-py"
        ) from error
    parser = MarkdownIt("commonmark").enable("table")
    parser.add_render_rule("html_block", _tag)
    parser.add_render_rule("html_inline", _tag)
    return parser


def _tag(_renderer: Any, tokens: "Sequence[Token]", index: int, _options: Any, _env: Any) -> str:
    """Return the HTML for HTML in a page: line breaks as they are, comments not at all, all else as text."""
    text = tokens[index].content
    if text.lstrip().startswith("<!--"):
        return ""
    return text if _MARKUP.fullmatch(text) else html.escape(text)


def _plain(inline: "Token") -> str:
    """Return a heading's text without its marks."""
    return "".join(
        child.content for child in inline.children or () if child.type in ("text", "code_inline")
    )


def _title_of(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return next(lines).removeprefix("# ").replace("`", "").strip()


def _links_of(token: "Token") -> Iterator[str]:
    for child in token.children or ():
        if child.type == "link_open":
            yield str(child.attrs["href"])


def _add_anchors(tokens: "Sequence[Token]") -> None:
    taken: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token.type == "heading_open":
            name = anchor(_plain(tokens[index + 1]))
            count = taken.get(name, 0)
            taken[name] = count + 1
            token.attrs["id"] = f"{name}-{count}" if count else name


def _cut_links(token: "Token", page: str) -> None:
    """Make a link that leaves docs/ its text."""
    is_cut = False
    for child in token.children or ():
        if child.type == "link_open":
            link = str(child.attrs["href"])
            is_cut = not re.match(r"[a-z]+:", link) and is_outside(page, link)
            if is_cut:
                child.tag, child.attrs = (
                    "span",
                    {"title": f"in the repository: {_below(page, link)}"},
                )
        elif child.type == "link_close" and is_cut:
            child.tag, is_cut = "span", False


def _below(page: str, link: str) -> str:
    """Return a link that leaves docs/ as a path of the repository."""
    return posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))

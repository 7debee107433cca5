"""Sphinx's configuration of the site that `make site` builds from docs/; CONTRIBUTING says why Sphinx.

Navigation, and what lies outside docs/, are as in the console (recovery/console/manual.py). RANKMEND_REPOSITORY, the address
of a browsable copy of the repository, makes links of what lies outside; without it they are text.
"""

import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from rankmend.version import RANKMEND_VERSION  # noqa: E402
from recovery.console.manual import INDEX, is_outside, sections  # noqa: E402

REPOSITORY: Final = os.environ.get("RANKMEND_REPOSITORY", "").rstrip("/")
_FENCE: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:)([^)\s#]+)(?:#[^)\s]*)?\)")

project = "rankmend"
author = "The rankmend developers"
project_copyright = ""
release = version = RANKMEND_VERSION
root_doc = INDEX.removesuffix(".md")
extensions = ["myst_parser"]
exclude_patterns = ["site"]
# The names of headings are GitHub's, down to the runbooks' sections.
myst_heading_anchors = 4
# Output of programs is shown under the name of its language, and need not parse as such.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = f"rankmend {RANKMEND_VERSION}"
html_favicon = str(ROOT / "recovery" / "console" / "static" / "icon.svg")
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False


def _outside(page: str, text: str, link: str) -> str:
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    if REPOSITORY:
        return f"[{text}]({REPOSITORY}/{path})"
    return text if path in text else f"{text} (`{path}`)"


def _prepare(_app: object, name: str, source: list[str]) -> None:
    """Cut links that leave docs/, and give the index its navigation."""
    page = f"{name}.md"
    pieces = _FENCE.split(source[0])
    for index in range(0, len(pieces), 2):
        pieces[index] = _LINK.sub(
            lambda found: (
                _outside(page, found[1], found[2]) if is_outside(page, found[2]) else found[0]
            ),
            pieces[index],
        )
    text = "".join(pieces)
    if page == INDEX:
        for section in sections(ROOT / "docs"):
            pages = "\n".join(entry.path.removesuffix(".md") for entry in section.entries)
            text += f"\n```{{toctree}}\n:hidden:\n:titlesonly:\n:caption: {section.title}\n\n{pages}\n```\n"
    source[0] = text


def _lead_in(app: object, error: Exception | None) -> None:
    """Lead the site's first address to the index."""
    if error is None:
        line = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        Path(app.outdir, "index.html").write_text(line, encoding="utf-8")  # type: ignore[attr-defined]


def setup(app: object) -> None:
    app.connect("source-read", _prepare)  # type: ignore[attr-defined]
    app.connect("build-finished", _lead_in)  # type: ignore[attr-defined]

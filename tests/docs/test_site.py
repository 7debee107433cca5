"""The site that `make site` builds: strict, so that a dead link fails it, and nothing on it comes from the network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from recovery.console.manual import DOCS
from tests.support.eventually import DEADLINE_S

pytest.importorskip("sphinx", reason="Sphinx is not installed (the extra docs)")
pytest.importorskip("furo", reason="Furo is not installed (the extra docs)")
pytestmark = pytest.mark.process

ROOT = DOCS.parent
# What a browser loads by itself; links that people follow may lead anywhere.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=["']?(?:https?:)?//"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preload|preconnect|icon))[^>]*\bhref=["']?(?:https?:)?//"""
    r"""|url\(\s*["']?(?:https?:)?//|@import\s+["'](?:https?:)?//""",
    re.IGNORECASE,
)
DIALLED = re.compile(r"""(?:fetch|importScripts|import|open)\(\s*["'`](?:https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs/site")
    done = subprocess.run(
        [*command, "-d", str(folder / "read"), "docs", str(folder / "html")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


def test_every_page_is_built_and_names_those_beside_it(site: Path) -> None:
    pages = [path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")]
    text = (site / "quick-start.html").read_text(encoding="utf-8")

    assert [page for page in pages if not (site / page).is_file()] == []
    assert 'rel="next"' in text
    assert 'rel="prev"' in text
    assert "README.html" in (site / "index.html").read_text()


def test_no_page_asks_the_network(site: Path) -> None:
    asking = {}
    for path in site.rglob("*"):
        if path.suffix in (".html", ".css", ".js"):
            text = path.read_text(encoding="utf-8")
            wanted = DIALLED if path.suffix == ".js" else LOADED
            if found := wanted.search(text):
                asking[str(path.relative_to(site))] = found[0]

    assert asking == {}


def test_the_search_has_its_index_on_the_site(site: Path) -> None:
    index = (site / "searchindex.js").read_text(encoding="utf-8")

    assert index.startswith("Search.setIndex(")
    assert '"quarantin"' in index or "quarantin:" in index
    assert 'src="searchindex.js"' in (site / "search.html").read_text(encoding="utf-8")

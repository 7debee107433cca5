"""Manual pages from the help of every command, as roff that man prints without a warning."""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import click
import pytest

from rankmend.cli import cli

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    path = ROOT / "deploy/packages/manual_pages.py"
    spec = importlib.util.spec_from_file_location("manual_pages", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(pages: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("man")
    pages.write_pages(made, click.Context(cli, info_name="rankmend"), "2026-01-02")
    return made


def test_every_command_has_a_page_that_says_in_a_line_what_it_does(folder: Path) -> None:
    names = {path.stem for path in folder.iterdir()}

    assert {
        "rankmend",
        *(f"rankmend-{name}" for name in cli.list_commands(click.Context(cli))),
    } <= names
    for path in folder.iterdir():
        name_line = path.read_text().split(".SH NAME\n")[1].splitlines()[0]
        assert len(name_line.partition(r" \- ")[2]) > 5, path.name


def test_man_prints_every_page_without_a_warning(folder: Path) -> None:
    if shutil.which("man") is None:
        pytest.skip("man is not installed")
    pages = sorted(str(path) for path in folder.iterdir())

    done = subprocess.run(
        ["man", "--warnings", "-P", "cat", "-l", *pages],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_text_that_roff_would_interpret_is_printed_as_it_is(pages: ModuleType) -> None:
    assert pages.escape(".so /etc/passwd") == r"\&.so /etc/passwd"
    assert pages.escape("'a\\b --x") == r"\&'a\eb \-\-x"


def test_block_keeps_its_lines_and_a_paragraph_is_one_line(pages: ModuleType) -> None:
    text = "First\nparagraph.\n\n\b\none  line\nanother"

    assert list(pages.paragraphs_of(text)) == [
        ("First paragraph.", False),
        ("one  line\nanother", True),
    ]

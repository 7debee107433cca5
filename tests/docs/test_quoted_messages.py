"""The error messages that docs/operate/cli.md quotes are those that the code prints."""

import re
from pathlib import Path

import pytest

from tests.support.shipped import SOURCES, texts_in

PAGE = Path(__file__).resolve().parents[2] / "docs/operate/cli.md"
ROW = re.compile(r"^\| `([^`]+)`.* \| .+ \|$", re.MULTILINE)


def quoted_messages() -> list[str]:
    table = PAGE.read_text(encoding="utf-8").partition("| message | what to do |\n")[2]
    return ROW.findall(table.partition("\n\n")[0])


@pytest.fixture(scope="module")
def messages() -> str:
    """Return every text of the code; a value filled in stands as WORD."""
    return "\n".join(
        text for path in SOURCES for text in texts_in(path.read_text(encoding="utf-8"))
    )


def test_the_page_quotes_messages() -> None:
    assert len(quoted_messages()) >= 10


@pytest.mark.parametrize("quoted", quoted_messages())
def test_a_quoted_message_is_one_that_the_code_prints(quoted: str, messages: str) -> None:
    """Capital letters in a quotation stand for a value; a message may be two texts, put together."""
    texts = [re.sub(r"\b[A-Z]{4,}\b", "WORD", text) for text in quoted.split(": ")]

    missing = [text for text in texts if text != "..." and text not in messages]

    assert not missing, f"{PAGE.name} quotes a message that no code prints"

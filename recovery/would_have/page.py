"""The report as one HTML file: no script, no network, every text escaped. Needs Jinja2 (`pip install rankmend[report]`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rankmend.errors import ConfigError
from rankmend.printable import printable
from recovery.would_have.rows import moment, plain_total, say_saved
from recovery.would_have.verdict import JudgedDecision

TEMPLATE: Final = "would_have.html.j2"


def render_page(judged: Sequence[JudgedDecision], made_unix_s: float, version: str) -> str:
    """Return the page; raises ConfigError where Jinja2 is missing."""
    try:
        from jinja2 import (  # noqa: PLC0415 - only this report needs it
            Environment,
            FileSystemLoader,
            StrictUndefined,
        )
    except ImportError as error:
        raise ConfigError(
            "the HTML report needs Jinja2, which is not installed: pip install 'rankmend[report]'"
        ) from error
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        moment=moment, clean=lambda text: printable(str(text)), saved=say_saved
    )
    page: str = environment.get_template(TEMPLATE).render(
        judged=judged, total=plain_total(judged), made_unix_s=made_unix_s, version=version
    )
    return page

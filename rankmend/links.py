"""Where alerts link to.

A relative link leads into Alertmanager's own pages, where there is no runbook: it is absolute, or an error.
"""

from typing import Final
from urllib.parse import urlsplit

from rankmend.errors import ConfigError

RUNBOOKS_PATH: Final = "docs/operate/runbooks"
"""Of the runbooks, in the repository and below each console's address."""
RUNBOOKS: Final = f"https://controller.example:9477/{RUNBOOKS_PATH}"
"""What stands where a site has set nothing. Nobody can register a name that ends in .example (RFC 2606)."""

_SCHEMES: Final = ("http", "https", "file")


def check_runbooks(url: str) -> str:
    """Return the URL of the runbooks without a final slash, or raise ConfigError."""
    parts = urlsplit(url)
    is_clean = url.isprintable() and " " not in url
    has_place = bool(parts.path if parts.scheme == "file" else parts.hostname)
    if (
        parts.scheme not in _SCHEMES
        or not has_place
        or not is_clean
        or parts.query
        or parts.fragment
    ):
        raise ConfigError(
            f"runbooks is not an absolute URL: {url!r:.200}. Alerts link to it: https://HOST/PATH of the "
            f"folder with controller.md, agent.md and findings.md, such as {RUNBOOKS}"
        )
    return url.rstrip("/")

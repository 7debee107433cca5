"""Prints what else the package's environment holds: each Python package with version, licence and home page."""

import sys
from email.message import Message
from importlib.metadata import distributions
from typing import Final

HOMES: Final = ("homepage", "home-page", "source", "source code", "repository", "documentation")


def licence_of(metadata: Message) -> str:
    classifiers = [
        text for text in metadata.get_all("Classifier") or [] if text.startswith("License ::")
    ]
    named = ", ".join(text.rpartition(" :: ")[2] for text in classifiers)
    stated = str(metadata.get("License") or "see its folder").splitlines()[0]
    return str(metadata.get("License-Expression") or named or stated)


def home_of(metadata: Message) -> str:
    links = dict(text.lower().partition(",")[::2] for text in metadata.get_all("Project-URL") or [])
    listed = [links[name].strip() for name in HOMES if name in links]
    return str(metadata.get("Home-page") or next(iter(listed), "-"))


if __name__ == "__main__":
    sys.stdout.write(
        "Python packages beside rankmend in its environment. Their licence files are in their .dist-info folders.\n\n"
    )
    found = {str(one.metadata["Name"]).lower(): one.metadata for one in distributions()}
    for name in sorted(set(found) - {"rankmend"}):
        about: Message = found[name]  # type: ignore[assignment]
        sys.stdout.write(
            f"{about['Name']} {about['Version']}\n    {licence_of(about)}\n    {home_of(about)}\n"
        )

"""The versions of deploy/lock.txt, compared with what these releases say of themselves."""

from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

LOCK = Path(__file__).resolve().parents[2] / "deploy" / "lock.txt"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def test_a_locked_version_runs_on_every_python_for_which_it_is_locked() -> None:
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    locked = [Requirement(line) for line in lines if not line.startswith("#")]

    refused = {
        f"{row.name} on Python {python}"
        for row in locked
        for python in PYTHONS
        if row.marker is None
        or row.marker.evaluate({"python_version": python, "python_full_version": f"{python}.9"})
        if not _pythons_of(row).contains(f"{python}.9")
    }

    assert refused == set(), "run make lock"


def _pythons_of(row: Requirement) -> SpecifierSet:
    """Return the Pythons for which the release is made, as far as it is installed here."""
    try:
        found = metadata.distribution(row.name)
    except metadata.PackageNotFoundError:
        return SpecifierSet()
    is_locked = row.specifier.contains(found.version, prereleases=True)
    if not is_locked or "Requires-Python" not in found.metadata:
        return SpecifierSet()
    return SpecifierSet(found.metadata["Requires-Python"])

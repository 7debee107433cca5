"""The modules of rankmend's packages: their files and dotted names."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("agent", "detectors", "recovery", "rankmend")
FILES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))


def module_name(file: Path) -> str:
    """Return the dotted name of a file of the packages."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

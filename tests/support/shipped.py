"""The files under deploy/ that people get: units, rules, configurations, programs."""

from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def shipped_files() -> list[Path]:
    """Return them all, without what Python has compiled."""
    return sorted(
        path for path in DEPLOY.rglob("*") if path.is_file() and path.parent.name != "__pycache__"
    )

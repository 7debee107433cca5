"""Notes of hosts of the controller."""

from recovery.launcher.run.meeting_site import HostNote


def note(**changes: object) -> HostNote:
    """Return the note of host "a" of job "x", with these changes."""
    fields: dict[str, object] = {
        "key": "job:x",
        "node": "a",
        "url": "https://a:1",
        "secret": "s",
        "fingerprint": "f",
        "epoch": 1,
        "beat": 0,
    }
    return HostNote(**{**fields, **changes})  # type: ignore[arg-type]

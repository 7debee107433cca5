"""How launchers spread their return, so that a restarted controller is not flooded."""

from typing import Final

# After a controller's restart all launchers come back, two connections each. A TLS handshake
# costs the controller about 1 ms of its core; so spread, they take half of it.
RETURNS_PER_S: Final = 500.0


def spread_s(launchers: int) -> float:
    """Return over how many seconds so many launchers spread their return."""
    return launchers / RETURNS_PER_S

"""nccl."""

from bench.gpu.rows import Telling

LIMIT_S = 60.0
CLAIMS: dict[str, str] = {}


def run(telling: Telling) -> None:
    """Try the rows of this area."""

"""Whether PyTorch is installed, asked without importing it: a worker of pytest that has imported it once can't again."""

from importlib.util import find_spec

import pytest


def needs_torch() -> None:
    """Skip the test where PyTorch is not installed."""
    if find_spec("torch") is None:
        pytest.skip("no PyTorch installed")

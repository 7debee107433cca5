"""For all tests."""

import gc
import signal
from collections.abc import Iterator

import psutil
import pytest


def pytest_configure() -> None:
    """Let started programs hear SIGINT: a shell's background job ignores it, and they inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def _own_procfs() -> Iterator[None]:
    """Have psutil read this machine again: collectors point it at a recorded tree for good."""
    yield
    psutil.PROCFS_PATH = "/proc"


@pytest.fixture(scope="module", autouse=True)
def _closed_descriptors() -> Iterator[None]:
    """Have descriptors closed that only garbage holds, before the next module's tests.

    Readers that are not closed by their test keep theirs until the collector comes by, and the
    agent's own start takes whatever there is out of its sight (`gc.freeze`). Past 1,024 of them,
    select(2) refuses to work.
    """
    yield
    gc.unfreeze()
    gc.collect()

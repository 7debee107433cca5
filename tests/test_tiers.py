"""What keeps a unit test to its tier: each forbidden deed fails it, also where the code under test swallows the refusal."""

import contextlib
import importlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from tests.support.eventually import fault_lasts
from tests.support.tiers import TierError, UnitGuard

pytestmark = pytest.mark.process
GUARD = UnitGuard()
DEEDS: dict[str, Callable[[], object]] = {
    "starts a process": lambda: subprocess.run(["true"], check=False),
    "forks": lambda: os.fork() or os._exit(0),
    "connects a socket": lambda: socket.socket().connect(("127.0.0.1", 9)),
    "binds a socket": lambda: socket.socket().bind(("127.0.0.1", 0)),
    "starts a thread": threading.Thread(target=print).start,
    "sleeps": lambda: fault_lasts(0.001),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_unit_test_is_refused_what_its_tier_may_not_do(deed: str) -> None:
    with GUARD.armed(), pytest.raises(TierError, match=deed):
        DEEDS[deed]()

    assert GUARD.deed() == deed


def test_refusal_that_the_code_swallows_is_known_afterwards() -> None:
    with GUARD.armed(), contextlib.suppress(Exception):
        subprocess.run(["true"], check=False)

    assert GUARD.deed() == "starts a process"


def test_import_of_torch_by_name_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    stand_in = type(sys)("torch")
    with GUARD.armed():
        monkeypatch.setitem(sys.modules, "torch", stand_in)
        deed = GUARD.deed()

    assert deed == "imports PyTorch"


def test_files_pipes_and_a_sleep_of_nothing_are_allowed() -> None:
    with GUARD.armed():
        importlib.import_module("json")
        reader, writer = os.pipe()
        os.close(reader)
        os.close(writer)
        socket.socketpair()[0].close()
        time.sleep(0)

    assert GUARD.deed() is None


def test_unarmed_guard_refuses_nothing() -> None:
    assert subprocess.run(["true"], check=False).returncode == 0

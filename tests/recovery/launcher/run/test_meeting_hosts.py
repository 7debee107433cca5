"""Hosts of the controller that meet: their certificate, their claims, and storage that hangs."""

import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from recovery.journal.folder.job_key import JobKey
from recovery.journal.limits import Policy
from recovery.launcher.run.host_guard import HostGuard
from recovery.launcher.run.meeting_site import HostFolder, HostNote, MeetingClient, Site
from recovery.launcher.run.options import Meeting, RunOptions
from recovery.service.meeting_secret import Identity, new_secret
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.free_port import free_port
from tests.support.host_notes import note

pytestmark = [pytest.mark.process, pytest.mark.safety]


def test_the_certificate_that_a_host_shows_has_the_fingerprint_that_was_foretold() -> None:
    import hashlib

    identity = Identity(new_secret())
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _address = server.accept()
            with identity.context().wrap_socket(connection, server_side=True) as tls:
                tls.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(server.getsockname(), DEADLINE_S) as plain:
            with context.wrap_socket(plain) as tls:
                shown = tls.getpeercert(binary_form=True)
                tls.sendall(b"x")
        thread.join(DEADLINE_S)

    assert shown is not None
    assert hashlib.sha256(shown).hexdigest() == identity.fingerprint


def test_of_many_that_claim_one_epoch_one_gets_it(tmp_path: Path) -> None:
    folder = HostFolder(tmp_path / ".rankmend")
    won: list[str] = []
    start = threading.Barrier(8)

    def claim(name: str) -> None:
        start.wait()
        if folder.claim(4, name):
            won.append(name)

    threads = [threading.Thread(target=claim, args=(f"n{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(won) == 1
    assert folder.newest_claim() == 4


class Shelf(HostFolder):
    """Shared storage that hangs while the test wants it to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.is_there = threading.Event()
        self.is_there.set()

    def read(self) -> HostNote | None:
        assert self.is_there.wait(DEADLINE_S)
        return super().read()

    def write(self, note: HostNote) -> None:
        assert self.is_there.wait(DEADLINE_S)
        super().write(note)


@pytest.fixture
def hosting(tmp_path: Path) -> Iterator[tuple[HostGuard, Shelf]]:
    """A launcher that hosts the controller, with a lease of three refreshes: a busy machine keeps it."""
    port = free_port()
    shelf = Shelf(tmp_path / "shared")
    site = Site(
        meeting=Meeting("127.0.0.1", port, None),
        key=JobKey("job:x", "x", "--job"),
        folder=shelf,
        secret=None,
        name="a",
        address="127.0.0.1",
        state=tmp_path / "state",
        policy=replace(Policy(), lease_s=6.0),
        budgets=None,
    )
    client = MeetingClient(site)
    guard = HostGuard(site, client, RunOptions("train.py"))
    guard.open()
    guard.start()
    yield guard, shelf
    shelf.is_there.set()
    guard.close()
    client.close()


def test_a_host_whose_storage_hangs_serves_no_more_and_again_when_it_is_back(
    hosting: tuple[HostGuard, Shelf],
) -> None:
    guard, shelf = hosting
    eventually(lambda: guard.is_hosting, "it hosts")
    first = shelf.read()
    assert first is not None

    shelf.is_there.clear()
    eventually(lambda: not guard.is_hosting, "it stops without the storage")
    shelf.is_there.set()

    eventually(lambda: guard.is_hosting, "it goes on")
    eventually(lambda: (now := shelf.read()) is not None and now.epoch > first.epoch, "as another")


def test_a_host_that_finds_a_newer_claim_makes_way(hosting: tuple[HostGuard, Shelf]) -> None:
    guard, shelf = hosting
    eventually(lambda: guard.is_hosting, "it hosts")
    assert shelf.claim(7, "b")

    eventually(lambda: not guard.is_hosting, "it has made way")
    shelf.write(note(node="b", epoch=7))

    eventually(lambda: guard._client.url == "https://a:1", "it follows the other one")
    assert not guard.is_hosting

"""The lease: what counts as reached, what a peer may be told, and what keeps ranks alive."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.launcher.membership.node_membership import Lease, boot_time_s
from recovery.launcher.membership.peer_launchers import LINE_BYTES_MAX, Peers, PeerWord
from recovery.launcher.rendezvous.ports import PortRange
from recovery.messages.exchange import Endpoint, Peer
from recovery.messages.peer_key import PeerKey
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = [pytest.mark.process, pytest.mark.safety]

JOB = "00000000-0000-0000-0000-000000000007"
SECRET = "5" * 64
PORTS = PortRange(20_000, 29_999)
LEASE_S = 1.2  # asks after 0.4 s without the controller


class CountedPeers(Peers):
    """Counts its rounds of questions that have ended."""

    rounds = 0

    async def _query_majority(self, lease: Lease, began_at_s: float) -> None:
        await super()._query_majority(lease, began_at_s)
        self.rounds += 1


def make(node: str, attempt: int = 3, *, job: str = JOB, secret: str = SECRET) -> CountedPeers:
    word = PeerWord(job, node, f"launcher-{node}", attempt, 0)
    return CountedPeers(secret, word, "127.0.0.1", PORTS, "127.0.0.1")


def peer(of: Peers, node: str) -> Peer:
    return Peer(node, f"launcher-{node}", of.endpoint)


@contextmanager
def running(*all_peers: Peers) -> Iterator[None]:
    for one in all_peers:
        one.start()
    try:
        yield
    finally:
        for one in all_peers:
            one.close()


def rounds(asking: Peers, lease: Lease) -> Callable[[], bool]:
    """Keep the lease, and tell whether a majority was reached since."""
    began_s = boot_time_s()
    asking.keep(lease)
    return lambda: asking.reached_at_s >= began_s


def await_two_rounds(*asking: CountedPeers) -> None:
    """Wait until a whole round of each has begun and ended from now on."""
    before = [peers.rounds for peers in asking]
    eventually(
        lambda: all(peers.rounds >= count + 2 for peers, count in zip(asking, before, strict=True)),
        "two rounds of questions have ended",
    )


def test_a_majority_that_runs_the_attempt_is_as_good_as_the_controller() -> None:
    a, b, c = make("a"), make("b"), make("c")
    with running(a, b):  # c never answers: it is not started
        reached = rounds(a, Lease(3, (peer(a, "a"), peer(b, "b"), peer(c, "c")), LEASE_S))

        eventually(reached, "two of three are a majority")

        assert a.unreachable == ("c",)
    c.close()


def test_launchers_that_have_one_secret_in_common_believe_each_other() -> None:
    """A controller that has lost its state makes another secret, and launchers hear of it one by one."""
    old, both, new = make("a"), make("b"), make("c", secret="of another controller")
    both.take_secret("of another controller")
    with running(old, both, new):
        for asking, asked in ((old, both), (both, old), (both, new), (new, both)):
            one, other = ("abc"[(old, both, new).index(it)] for it in (asking, asked))
            lease = Lease(3, (peer(asking, one), peer(asked, other)), LEASE_S)

            eventually(rounds(asking, lease), f"{one} reaches {other}")


def test_peers_that_have_emptied_the_attempt_are_no_majority() -> None:
    a, b, c = make("a"), make("b"), make("c")
    b.tell(3, empty_through=3)
    c.tell(4, empty_through=3)  # it was ordered another one meanwhile
    with running(a, b, c):
        reached = rounds(a, Lease(3, (peer(a, "a"), peer(b, "b"), peer(c, "c")), LEASE_S))

        await_two_rounds(a)

        assert not reached()
        eventually(lambda: a.unreachable == (), "they did answer")


def test_half_is_no_majority_and_a_launcher_off_the_list_does_not_count_itself() -> None:
    a, b, c = make("a"), make("b"), make("c")
    with running(a, b):
        half = rounds(a, Lease(3, (peer(a, "a"), peer(c, "c")), LEASE_S))
        others = rounds(b, Lease(3, (peer(a, "a"), peer(c, "c")), LEASE_S))

        await_two_rounds(a, b)

        assert not half()
        assert not others()
    c.close()


def test_alone_on_the_list_it_is_its_own_majority() -> None:
    a = make("a")
    with running(a):
        eventually(rounds(a, Lease(3, (peer(a, "a"),), LEASE_S)), "one of one")


def test_who_does_not_answer_is_found_at_once_in_each_attempt_and_told_until_it_does() -> None:
    """An attempt over a torn link may live for a second, and then it is decided where to go on."""
    a, gone = make("a"), make("b")
    told = peer(gone, "b")
    gone.close()
    with running(a):
        a.note_controller(
            boot_time_s()
        )  # which is there: peers are asked for the sake of this only
        a.keep(Lease(3, (peer(a, "a"), told), 60.0))
        eventually(lambda: a.unreachable == ("b",), "b does not answer")
        a.keep(None)
        assert a.unreachable == ("b",)  # between the attempts, too

        again = make("b")
        with running(again):
            a.keep(Lease(4, (peer(a, "a"), Peer("b", told.launcher_id, again.endpoint)), 60.0))
            eventually(lambda: a.unreachable == (), "b answers in the next attempt")


def test_a_node_whose_launcher_is_another_one_is_not_told_as_out_of_reach() -> None:
    a, gone = make("a"), make("b")
    told = peer(gone, "b")
    gone.close()
    with running(a):
        a.note_controller(boot_time_s())
        a.keep(Lease(3, (peer(a, "a"), told), 60.0))
        eventually(lambda: a.unreachable == ("b",), "b does not answer")

    # Closed: it can't find at once that the newer one doesn't answer either.
    a.keep(Lease(3, (peer(a, "a"), Peer("b", "a newer launcher of b", told.endpoint)), 60.0))

    assert a.unreachable == ()


def test_a_neighbour_that_is_out_of_reach_is_told_and_none_counts_for_the_majority() -> None:
    a, near, gone = make("a"), make("b"), make("c")
    ring = (peer(near, "b"), peer(gone, "c"))
    gone.close()
    with running(a, near):
        a.note_controller(boot_time_s())
        a.keep(Lease(3, (peer(a, "a"), peer(near, "b")), 60.0, neighbours=ring))
        eventually(lambda: a.unreachable == ("c",), "c does not answer")

        silent = Peer("d", "launcher-d", Endpoint("127.0.0.1", 1))
        reached = rounds(a, Lease(4, (peer(a, "a"), silent), LEASE_S, neighbours=ring))
        a.tell(4, empty_through=3)
        near.tell(4, empty_through=3)
        await_two_rounds(a)

        assert not reached()
        assert "c" in a.unreachable  # it was the neighbour of the attempt before, too


def test_a_launcher_that_was_replaced_is_not_taken_for_the_one_of_the_order() -> None:
    a, newer = make("a"), make("b")
    meant = Peer("b", "an older launcher of b", newer.endpoint)
    with running(a, newer):
        reached = rounds(a, Lease(3, (peer(a, "a"), meant), LEASE_S))

        await_two_rounds(a)

        assert not reached()


@pytest.mark.parametrize(
    "other", [{"secret": "6" * 64}, {"job": JOB.replace("7", "8")}], ids=["secret", "job"]
)
def test_a_launcher_of_another_job_proves_nothing(other: dict[str, str]) -> None:
    a, foreign = make("a"), make("b", **other)  # type: ignore[arg-type]
    with running(a, foreign):
        reached = rounds(a, Lease(3, (peer(a, "a"), peer(foreign, "b")), LEASE_S))

        eventually(lambda: a.unreachable == ("b",), "its answer is no answer")

        assert not reached()


def test_a_recorded_answer_is_not_believed_again() -> None:
    a, b = make("a"), make("b")
    with running(b):
        key = PeerKey(SECRET, JOB)
        with socket.create_connection((b.endpoint.address, b.endpoint.port), DEADLINE_S) as line:
            theirs = line.recv(LINE_BYTES_MAX).decode().strip()
            mac = key.prove("ask", "b", theirs, "our nonce")
            line.sendall(json.dumps({"nonce": "our nonce", "mac": mac}).encode() + b"\n")
            recorded = line.recv(LINE_BYTES_MAX)
    assert b'"word"' in recorded
    with socket.create_server(("127.0.0.1", 0)) as liar, running(a):
        where = Endpoint("127.0.0.1", liar.getsockname()[1])
        reached = rounds(a, Lease(3, (peer(a, "a"), Peer("b", "launcher-b", where)), LEASE_S))
        liar.settimeout(DEADLINE_S)
        line, _address = liar.accept()
        with line:
            line.settimeout(DEADLINE_S)
            line.sendall(theirs.encode() + b"\n")
            line.recv(LINE_BYTES_MAX)
            line.sendall(recorded)

        eventually(lambda: a.unreachable == ("b",), "the recorded answer carries no proof")

        assert not reached()


def test_a_report_that_was_taken_dates_from_when_it_was_sent() -> None:
    a = make("a")

    a.note_controller(100.0)
    a.note_controller(90.0)  # its answer came later

    assert a.reached_at_s == 100.0
    a.close()


def test_who_can_prove_nothing_hears_nothing() -> None:
    b = make("b")
    with running(b):
        with socket.create_connection((b.endpoint.address, b.endpoint.port), DEADLINE_S) as line:
            line.recv(LINE_BYTES_MAX)
            line.sendall(b'{"nonce": "n", "mac": "guessed"}\n')

            assert line.recv(LINE_BYTES_MAX) == b""


@pytest.fixture(scope="module")
def served() -> Iterator[Peers]:
    b = make("b")
    with running(b):
        yield b


@given(body=st.one_of(st.binary(max_size=3 * LINE_BYTES_MAX), st.just(b"[" * 5000 + b"\n")))
def test_whatever_is_sent_the_port_answers_the_next_one(served: Peers, body: bytes) -> None:
    where = (served.endpoint.address, served.endpoint.port)
    with socket.create_connection(where, DEADLINE_S) as line:
        line.sendall(body)
        line.shutdown(socket.SHUT_WR)

    with socket.create_connection(where, DEADLINE_S) as line:
        assert len(line.recv(LINE_BYTES_MAX).strip()) == 64

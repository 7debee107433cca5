"""Launchers of hosts in a ring, of which only one is a peer of the lease, as in a job of thousands of nodes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from recovery.launcher.membership.node_membership import Lease, boot_time_s
from recovery.launcher.membership.peer_launchers import Peers, PeerWord
from recovery.launcher.rendezvous.ports import PortRange
from recovery.messages.exchange import Peer
from tests.support.eventually import eventually
from tests.support.hosts import Fleet, why_not

pytestmark = [
    pytest.mark.site,
    pytest.mark.safety,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]
JOB = "00000000-0000-0000-0000-000000000007"
LEASE_S = 30.0  # neighbours are asked every 5 s


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(4, tmp_path) as made:
        yield made


def wait_for(links: dict[str, Peers], is_so: Callable[[], bool], what: str) -> None:
    """Wait, while the controller goes on taking everybody's reports."""

    def look() -> bool:
        for link in links.values():
            link.note_controller(boot_time_s())
        return is_so()

    told = lambda: {name: link.unreachable for name, link in links.items()}  # noqa: E731
    eventually(look, lambda: f"{what}: {told()}", pause_s=0.05)


def test_both_ends_of_a_torn_pair_of_neighbours_miss_each_other_until_it_is_whole_again(
    fleet: Fleet,
) -> None:
    with ExitStack() as stack:
        links: dict[str, Peers] = {}
        for host in fleet:
            word = PeerWord(JOB, host.name, f"launcher-{host.name}", 1, 0)
            with host.network():  # the thread that asks is the host's, too
                link = Peers("5" * 64, word, host.address, PortRange(20_000, 29_999), host.address)
                stack.callback(link.close)
                link.note_controller(boot_time_s())
                link.start()
            links[host.name] = link
        ring = [Peer(name, f"launcher-{name}", link.endpoint) for name, link in links.items()]
        for number, link in enumerate(links.values()):
            around = (ring[number - 1], ring[(number + 1) % len(ring)])
            link.keep(Lease(1, (ring[0],), LEASE_S, around))
        h1, h2, h3, h4 = fleet

        with fleet.partition([h2], [h3]):
            torn = {h1.name: (), h2.name: (h3.name,), h3.name: (h2.name,), h4.name: ()}
            wait_for(
                links,
                lambda: {name: link.unreachable for name, link in links.items()} == torn,
                "the two miss each other, and nobody else",
            )

        wait_for(
            links,
            lambda: not any(link.unreachable for link in links.values()),
            "all answer each other again",
        )

"""Over what a fabric test sends: plain TCP, or RDMA where every node can. It only decides."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rankmend.errors import ConfigError, LaunchError
from recovery.lab.fabric.fabric_messages import JoinFabric, Transport, TransportWish
from recovery.lab.fabric.fabric_options import FabricKind

# Each sending program polls on a core of its own.
PROGRAMS_MAX: Final = 64  # of one node at a time
SHOWN_MAX: Final = 5
_OVER_RDMA: Final = frozenset(
    {FabricKind.FIND, FabricKind.PAIRS, FabricKind.RING, FabricKind.BISECT, FabricKind.ALL_TO_ALL}
)


@dataclass(frozen=True, slots=True)
class TransportChoice:
    transport: Transport
    reason: str = ""


def sought(wish: TransportWish, kind: FabricKind) -> TransportWish:
    """Return what a node gets ready for: RDMA only for tests that may go over it."""
    return wish if kind in _OVER_RDMA else TransportWish.TCP


def choose_transport(
    wish: TransportWish, kind: FabricKind, peers: Sequence[JoinFabric]
) -> TransportChoice:
    """Return the transport of all tests, and why. Raises ConfigError where the wish can't be met, with the nodes' names."""
    if kind not in _OVER_RDMA:
        if wish is TransportWish.RDMA:
            raise ConfigError(f"{kind.value} does not go over RDMA: leave out --transport rdma")
        return TransportChoice(Transport.TCP)
    problems = [] if wish is TransportWish.TCP else _problems(kind, peers)
    if wish is not TransportWish.TCP and not problems:
        return TransportChoice(Transport.RDMA, f"by ib_write_bw, on {_ports(peers[0])}")
    if wish is TransportWish.RDMA:
        raise ConfigError(f"can't test over RDMA: {_few(problems)}")
    if silent := _without_tcp(peers):
        raise ConfigError(f"can't test over TCP: {_few(silent)}" + (f"; nor over RDMA: {_few(problems)}" if problems else ""))  # fmt: skip
    return TransportChoice(Transport.TCP, f"not RDMA: {_few(problems)}" if problems else "")


def choose_after_failure(
    wish: TransportWish, peers: Sequence[JoinFabric], problems: Sequence[str]
) -> TransportChoice:
    """Return TCP, where nothing could be measured over RDMA and nobody insists. Raises LaunchError where somebody does."""
    text = f"no test gave a rate: {_few(problems)}"
    if wish is TransportWish.RDMA or _without_tcp(peers):
        raise LaunchError(f"can't test over RDMA: {text}")
    return TransportChoice(Transport.TCP, f"not RDMA: {text}")


def _without_tcp(peers: Sequence[JoinFabric]) -> list[str]:
    return [
        f"{peer.node}: {rail.name} has no IP address"
        for peer in peers
        for rail in peer.rails
        if not rail.has_tcp
    ]


def _problems(kind: FabricKind, peers: Sequence[JoinFabric]) -> list[str]:
    found = []
    for peer in peers:
        own = {
            f"{peer.node}: {rail.rdma_problem}": None for rail in peer.rails if rail.rdma_problem
        }
        found += list(own)
    for at, rail in enumerate(peers[0].rails):
        odd = next((item for item in peers if item.rails[at].is_ethernet != rail.is_ethernet), None)
        if odd is not None and not found:
            found.append(f"{rail.name} is {_layer(rail.is_ethernet)} on {peers[0].node} and {_layer(not rail.is_ethernet)} on {odd.node}")  # fmt: skip
    at_once = {
        FabricKind.ALL_TO_ALL: 2 * (len(peers) - 1),
        FabricKind.RING: 2,
        FabricKind.BISECT: 2,
    }
    programs = at_once.get(kind, 1) * len(peers[0].rails)
    if programs > PROGRAMS_MAX:
        found.append(f"{kind.value} of {len(peers)} nodes takes {programs} programs on each at once, at most {PROGRAMS_MAX} run")  # fmt: skip
    return found


def _ports(peer: JoinFabric) -> str:
    return ", ".join(
        rail.rdma if rail.rdma.startswith(rail.name) else f"{rail.name} ({rail.rdma})"
        for rail in peer.rails
    )


def _layer(is_ethernet: bool) -> str:
    return "RoCE" if is_ethernet else "InfiniBand"


def _few(problems: Sequence[str]) -> str:
    more = f"; and {len(problems) - SHOWN_MAX} more" if len(problems) > SHOWN_MAX else ""
    return "; ".join(problems[:SHOWN_MAX]) + more

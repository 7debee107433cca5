"""What runs on a node's network at present: flows of its programs and counters of its ports. It sends nothing and changes nothing."""

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from detectors.formats.pause_counters import PauseKind, parse_pauses
from detectors.formats.rdma_qps import QueuePair, parse_qps
from detectors.formats.ss_flows import TcpFlow, parse_ss
from rankmend.errors import SourceError
from recovery.lab.fabric.fabric_messages import SEEN_MAX, PauseRate, PortRates, SeenFlow, SeenPair
from recovery.lab.fabric.rdma_ports import SYSFS, port_of_interface

TOOL_S_MAX: Final = 30.0
NAMES_S_MAX: Final = 5.0  # for programs' names: ss reads the descriptors of every process
BYTES_PER_S_MIN: Final = 10_000.0  # below: heartbeats and the like
_SS: Final = ("ss", "-H", "-t", "-i", "-n", "-O", "state", "established")
_NAMES: Final = (*_SS, "-p")
_STATISTICS: Final = ("ethtool", "-S")
_QPS: Final = ("rdma", "res", "show", "qp", "-j")
_ROCE_COUNTERS: Final = ("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled")


def look(
    seconds: float,
    addresses: Sequence[str],
    interfaces: Sequence[str],
    sysfs: Path = SYSFS,
) -> tuple[tuple[SeenFlow, ...], tuple[SeenPair, ...], tuple[PortRates, ...]]:
    """Watch for so long; return the flows that send from these addresses, queue pairs, and rates of the interfaces.

    Raises SourceError where `ss` is missing or fails.
    """
    pauses = [_pauses(name) for name in interfaces]
    counters, began_s = [_counters(name, sysfs) for name in interfaces], time.monotonic()
    before = {(flow.port, flow.peer, flow.peer_port): flow for flow in _read_tcp()}
    time.sleep(seconds)
    after, took_s = _read_tcp(), time.monotonic() - began_s
    rates = [
        _rates(name, old, _counters(name, sysfs), took_s)
        for name, old in zip(interfaces, counters, strict=True)
    ]
    rates = [
        msgspec.structs.replace(port, pauses=_pause_rates(old, _pauses(port.interface), took_s))
        for port, old in zip(rates, pauses, strict=True)
    ]
    flows = []
    for item in after:
        first = before.get((item.port, item.peer, item.peer_port))
        rate = (item.acked_bytes - (first.acked_bytes if first else 0)) / took_s
        is_held_up = item.is_held_up and first is not None and first.is_held_up
        if item.address in addresses and (is_held_up or rate >= BYTES_PER_S_MIN):
            rail = addresses.index(item.address)
            flows.append(SeenFlow(rail, item.port, item.peer, item.peer_port, rate, "", is_held_up))
    named = _named(sorted(flows, key=lambda flow: (-flow.is_held_up, -flow.bytes_per_s))[:SEEN_MAX])
    ports = [port_of_interface(sysfs, name) for name in interfaces]
    rails = {port.device: at for at, port in enumerate(ports) if port is not None}
    pairs = [
        SeenPair(rails[pair.device], pair.own, pair.other, pair.program)
        for pair in _read_pairs(sysfs)
        if pair.device in rails
    ]
    return named, tuple(pairs[:SEEN_MAX]), tuple(rates)


def _named(flows: Sequence[SeenFlow]) -> tuple[SeenFlow, ...]:
    """Return the flows with their programs' names, where these can be had in time."""
    if not flows:
        return ()
    try:
        known = parse_ss(_run(_NAMES, NAMES_S_MAX).decode("utf-8", "replace"))
    except SourceError:
        return tuple(flows)
    names = {(flow.port, flow.peer, flow.peer_port): flow.program for flow in known}
    return tuple(
        msgspec.structs.replace(
            flow, program=names.get((flow.source_port, flow.address, flow.port), "")
        )
        for flow in flows
    )


def _read_tcp() -> tuple[TcpFlow, ...]:
    if shutil.which("ss") is None:
        raise SourceError("flows come from ss, which is not installed (Debian: iproute2)")
    return parse_ss(_run(_SS).decode("utf-8", "replace"))


def _read_pairs(sysfs: Path) -> tuple[QueuePair, ...]:
    """Return the queue pairs; none where this node has no RDMA device or no `rdma`."""
    devices = sysfs / "class/infiniband"
    if not devices.is_dir() or not any(devices.iterdir()) or shutil.which("rdma") is None:
        return ()
    return parse_qps(_run(_QPS))


def _run(words: Sequence[str], limit_s: float = TOOL_S_MAX) -> bytes:
    try:
        done = subprocess.run(words, capture_output=True, timeout=limit_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"{' '.join(words)}: {error}") from error
    if done.returncode:
        reported = done.stderr.decode("utf-8", "replace").strip()[:200]
        raise SourceError(f"{' '.join(words)} ended with {done.returncode}: {reported}")
    return done.stdout


def _counters(interface: str, sysfs: Path) -> dict[str, int]:
    """Return what an interface and its RDMA device count; what they don't count is missing."""
    files = {"bytes": sysfs / "class/net" / interface / "statistics/tx_bytes"}
    if (port := port_of_interface(sysfs, interface)) is not None:
        folder = sysfs / "class/infiniband" / port.device / "ports" / str(port.port)
        files["rdma_words"] = folder / "counters/port_xmit_data"  # of 4 bytes
        files |= {name: folder / "hw_counters" / name for name in _ROCE_COUNTERS}
    found = {}
    for name, path in files.items():
        try:
            found[name] = int(path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
    return found


def _rates(
    interface: str, before: dict[str, int], after: dict[str, int], took_s: float
) -> PortRates:
    def rate(name: str) -> float | None:
        if name not in before or name not in after:
            return None
        return max(0, after[name] - before[name]) / took_s

    words = rate("rdma_words")
    marked, sent, handled = (rate(name) for name in _ROCE_COUNTERS)
    rdma = words * 4 if words is not None else None
    return PortRates(interface, rate("bytes"), rdma, marked, sent, handled)


def _pauses(interface: str) -> Mapping[PauseKind, int]:
    """Return the pause frames that an interface's driver counts; none without ethtool, or where it counts none."""
    if shutil.which(_STATISTICS[0]) is None:
        return {}
    try:
        return parse_pauses(_run((*_STATISTICS, interface), NAMES_S_MAX).decode("utf-8", "replace"))
    except SourceError:  # a device without statistics
        return {}


def _pause_rates(
    before: Mapping[PauseKind, int], after: Mapping[PauseKind, int], took_s: float
) -> tuple[PauseRate, ...]:
    return tuple(
        PauseRate(kind.priority, kind.is_received, (after[kind] - before[kind]) / took_s)
        for kind in sorted(after, key=lambda item: (item.priority, not item.is_received))
        if kind in before and after[kind] > before[kind]
    )

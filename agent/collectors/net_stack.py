"""Losses and repeats in the kernel's network stack: TCP, receive queues, connection tracking.

A rank's TCP traffic (gloo, the rendezvous store, checkpoints, NFS) stalls on each of these, and no
card counts them.

Source: <root>/net/snmp and <root>/net/netstat (Documentation/networking/snmp_counter.rst),
        <root>/net/softnet_stat (net/core/net-procfs.c: processed, dropped, time_squeeze in the
        first three columns, a line a CPU), <root>/sys/net/netfilter/nf_conntrack_{count,max}.
        They are those of the agent's own network namespace.
Cost:   five small reads every 5 s; no privilege.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agent.metrics import Family, Metric, counter, gauge
from agent.sources.kept_files import KeptFiles
from rankmend.errors import NoSourceError, SourceError

_BYTES_MAX = 1 << 18  # a line of some 100 bytes for each CPU
# as the kernel calls them, and what they are here
_TCP = {
    "InSegs": "tcp_received_segments",
    "OutSegs": "tcp_sent_segments",
    "RetransSegs": "tcp_retransmitted_segments",
    "InErrs": "tcp_receive_errors",
    "EstabResets": "tcp_resets",
}
_TCP_EXT = {
    "TCPTimeouts": "tcp_timeouts",
    "ListenOverflows": "tcp_listen_overflows",
    "TCPAbortOnTimeout": "tcp_aborted_on_timeout",
}
_SOFTNET = ("softnet_processed", "softnet_dropped", "softnet_squeezed")

FAMILIES: Final[tuple[Family, ...]] = (
    gauge("net_stack_success", "", ("file",), "1 when the file made sense, 0 when not."),
    counter("tcp_received_segments", "", (), "TCP segments received since boot."),
    counter("tcp_sent_segments", "", (), "TCP segments sent since boot, without repeated ones."),
    counter("tcp_retransmitted_segments", "", (), "TCP segments sent again since boot."),
    counter("tcp_receive_errors", "", (), "TCP segments received in error since boot."),
    counter("tcp_resets", "", (), "Established TCP connections that were reset since boot."),
    counter("tcp_timeouts", "", (), "Retransmission timers of TCP that ran out since boot."),
    counter(
        "tcp_aborted_on_timeout",
        "",
        (),
        "TCP connections given up after too many repetitions since boot.",
    ),
    counter(
        "tcp_listen_overflows",
        "",
        (),
        "Connections refused since boot because a program did not accept them in time.",
    ),
    counter("softnet_processed", "", (), "Frames taken from the receive queues of all CPUs."),
    counter(
        "softnet_dropped", "", (), "Frames dropped because the receive queue of a CPU was full."
    ),
    counter(
        "softnet_squeezed",
        "",
        (),
        "Times that a CPU stopped receiving with frames left, because its share of time was over.",
    ),
    gauge("conntrack_entries", "", (), "Connections that netfilter tracks."),
    gauge(
        "conntrack_entries_max", "", (), "Connections that it can track: further ones are dropped."
    ),
)


class NetStackCollector:
    name = "net_stack"
    interval_s = 5.0

    def __init__(self, procfs_root: Path) -> None:
        self._root = procfs_root
        self._files = KeptFiles(bytes_max=_BYTES_MAX)

    def collect(self) -> Iterator[Metric]:
        if not (self._root / "net" / "snmp").exists():
            raise NoSourceError(f"no figures of the network stack at {self._root / 'net' / 'snmp'}")
        self._files.begin_run()
        for file, read in (
            ("net/snmp", lambda text: _known(parse_pairs(text, "Tcp"), _TCP)),
            ("net/netstat", lambda text: _known(parse_pairs(text, "TcpExt"), _TCP_EXT)),
            ("net/softnet_stat", parse_softnet),
        ):
            labels = (("file", file),)
            try:
                values = read(self._files.read(f"{self._root}/{file}"))
            except NoSourceError:
                continue
            except SourceError:
                yield Metric("rankmend_net_stack_success", 0, labels)
                continue
            yield Metric("rankmend_net_stack_success", 1, labels)
            for name, value in values.items():
                yield Metric(f"rankmend_{name}_total", value)
        yield from self._tracking()

    def _tracking(self) -> Iterator[Metric]:
        """Yield how full the table of connections is; nothing where none is tracked."""
        for name, metric in (
            ("nf_conntrack_count", "conntrack_entries"),
            ("nf_conntrack_max", "conntrack_entries_max"),
        ):
            try:
                text = self._files.read(f"{self._root}/sys/net/netfilter/{name}")
            except (NoSourceError, SourceError):
                continue
            if _is_number(text):
                yield Metric(f"rankmend_{metric}", int(text))


def parse_pairs(text: str, protocol: str) -> dict[str, int]:
    """Return the counters of one protocol: a line of names, and one of numbers below it."""
    lines = [line.split() for line in text.splitlines() if line.startswith(f"{protocol}: ")]
    if len(lines) != 2 or len(lines[0]) != len(lines[1]):
        raise SourceError(f"{protocol} is not a line of names and one of numbers: {text[:120]!r}")
    names, numbers = lines[0][1:], lines[1][1:]
    return {
        name: int(number)
        for name, number in zip(names, numbers, strict=True)
        if _is_number(number)  # MaxConn is -1
    }


def parse_softnet(text: str) -> dict[str, int]:
    """Return the sums over all CPUs of the first three columns, which are hexadecimal."""
    totals = dict.fromkeys(_SOFTNET, 0)
    lines = text.splitlines()
    if not lines:
        raise SourceError("softnet_stat is empty")
    for line in lines:
        words = line.split()
        try:
            values = [int(word, 16) for word in words[: len(_SOFTNET)]]
        except ValueError:
            values = []
        if len(values) != len(_SOFTNET) or min(values) < 0:
            raise SourceError(f"softnet_stat line is not hexadecimal columns: {line[:120]!r}")
        for name, value in zip(_SOFTNET, values, strict=True):
            totals[name] += value
    return totals


def _known(found: dict[str, int], names: dict[str, str]) -> dict[str, int]:
    return {metric: found[name] for name, metric in names.items() if name in found}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20

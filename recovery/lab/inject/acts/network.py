"""Faults of an interface, by nftables, a queueing discipline or the interface itself. A table of ours has the injection's id.

Loss, a partition and a limit of bandwidth are rules that drop: the interface keeps its queueing discipline. Source: nft(8).
"""

from collections.abc import Callable
from typing import Final

from rankmend.errors import NoSourceError, RankmendError
from recovery.lab.inject.fault import FaultKind, TargetKind
from recovery.lab.inject.faulty.delay_line import MARK
from recovery.lab.inject.plan import FaultPlace, FaultPlan
from recovery.lab.inject.request import divide_peers
from recovery.lab.inject.system_calls import need_program, run_program, without_kernels
from recovery.lab.inject.undo import DeleteQueueing, DeleteTable, RaiseLink, Undo

_LOSS_STEPS: Final = 10_000
_BURST_BYTES_MIN: Final = 64 * 1024
_BURST_S: Final = 0.05  # how much a switch's buffer takes
_DELAY_PACKETS_MAX: Final = 100_000
_DEFAULTS: Final = ("noqueue", "mq", "pfifo_fast", "fq_codel", "pfifo", "fq")


def plan(place: FaultPlace) -> FaultPlan:
    match place.request.fault:
        case FaultKind.LINK_DOWN:
            return _down(place)
        case FaultKind.DELAY:
            return _delay(place)
        case FaultKind.LOSS:
            return _drop(place, _loss(place))
        case FaultKind.BANDWIDTH:
            return _drop(place, _policing(place))
        case _:
            return _drop(place, _partition(place))


def table_name(place: FaultPlace) -> str:
    return f"rankmend_inject_{place.injection_id}"


def _drop(place: FaultPlace, rules: list[tuple[str, str]]) -> FaultPlan:
    """``rules``: of (chain, match)."""
    need_program("nft")
    name = table_name(place)
    lines = [f"add table inet {name}"]
    for chain in ("input", "output", "forward"):
        hook = f"{{ type filter hook {chain} priority -300; policy accept; }}"
        lines.append(f"add chain inet {name} {chain} {hook}")
    lines += [f"add rule inet {name} {chain} {match} drop" for chain, match in rules]
    text = "\n".join(lines) + "\n"
    return FaultPlan(
        tuple(f"nft: {line}" for line in lines),
        (DeleteTable("inet", name),),
        lambda: _run(["nft", "-f", "-"], text),
    )


def _run(argv: list[str], text: str = "") -> None:
    run_program(argv, text.encode())


def _both_ways(place: FaultPlace) -> list[tuple[str, str]]:
    """Return (chain, match) of what comes in and goes out by the interface, forwarded packets included."""
    name = place.request.target.name
    ways = (
        ("input", "iifname"),
        ("output", "oifname"),
        ("forward", "iifname"),
        ("forward", "oifname"),
    )
    return [(chain, f'{word} "{name}"') for chain, word in ways]


def _loss(place: FaultPlace) -> list[tuple[str, str]]:
    share = place.request.options.share
    assert share is not None, "checked with the request"
    below = round(share * _LOSS_STEPS)
    chance = "" if below >= _LOSS_STEPS else f" numgen random mod {_LOSS_STEPS} < {max(1, below)}"
    return [(chain, match + chance) for chain, match in _both_ways(place)]


def _policing(place: FaultPlace) -> list[tuple[str, str]]:
    rate = place.request.options.rate_bytes_per_s
    assert rate is not None, "checked with the request"
    burst = max(_BURST_BYTES_MIN, round(rate * _BURST_S))
    limit = f" limit rate over {round(rate)} bytes/second burst {burst} bytes"
    return [(chain, match + limit) for chain, match in _both_ways(place)]


def _partition(place: FaultPlace) -> list[tuple[str, str]]:
    target = place.request.target
    name = target.name if target.kind is TargetKind.INTERFACE else None
    rules = []
    fours, sixes = divide_peers(place.request.options.peers)
    families = (("ip", [str(four) for four in fours]), ("ip6", [str(six) for six in sixes]))
    for family, peers in families:
        if peers:
            listed = ", ".join(peers)
            for chain, word, end in (
                ("input", "iifname", "saddr"),
                ("output", "oifname", "daddr"),
                ("forward", "iifname", "saddr"),
                ("forward", "oifname", "daddr"),
            ):
                device = "" if name is None else f'{word} "{name}" '
                rules.append((chain, f"{device}{family} {end} {{ {listed} }}"))
    return rules


def _down(place: FaultPlace) -> FaultPlan:
    need_program("ip")
    name = place.request.target.name

    def save() -> tuple[Undo, ...]:
        flags = run_program(["ip", "-o", "link", "show", "dev", name]).decode("utf-8", "replace")
        if "UP" not in flags.partition("<")[2].partition(">")[0].split(","):
            raise NoSourceError(f"interface {name} is down already")
        addresses = run_program(["ip", "addr", "save", "dev", name])
        saved = [
            without_kernels(
                run_program(["ip", family, "route", "save", "table", "all", "dev", name])
            )
            for family in ("-4", "-6")
        ]
        return (RaiseLink(name, addresses, *saved),)

    return FaultPlan(
        (f"save the addresses and routes of {name}", f"ip link set dev {name} down"),
        prepare=save,
        make=lambda: _run(["ip", "link", "set", "dev", name, "down"]),
    )


def _delay(place: FaultPlace) -> FaultPlan:
    name, delay_s = place.request.target.name, place.request.options.delay_s
    assert delay_s is not None, "checked with the request"
    if _takes_netem(name):
        line = f"tc qdisc add dev {name} root netem delay {round(delay_s * 1e6)}us limit {_DELAY_PACKETS_MAX}"
        return FaultPlan((line,), (DeleteQueueing(name, "netem"),), lambda: _run(line.split()))
    need_program("nft")
    tap, table = f"rmd{place.injection_id[:8]}", table_name(place)
    lines = (
        f"add table netdev {table}",
        f'add chain netdev {table} out {{ type filter hook egress device "{name}" priority 0; policy accept; }}',
        f'add rule netdev {table} out meta mark != {MARK:#x} fwd to "{tap}"',
    )
    return FaultPlan(
        (
            f"make the interface {tap}, whose program holds each frame for {delay_s:g} s (this kernel has no netem)",
            *(f"nft: {line}" for line in lines),
        ),
        (DeleteTable("netdev", table),),
        lambda: _run(["nft", "-f", "-"], "\n".join(lines) + "\n"),
        helper=("recovery.lab.inject.faulty.delay_line", name, tap, str(delay_s)),
    )


def _takes_netem(name: str) -> bool:
    """Return whether this kernel has netem, and the interface no queueing that somebody has chosen."""
    try:
        need_program("tc")
        shown = run_program(["tc", "qdisc", "show", "dev", name, "root"]).decode("utf-8", "replace")
        kinds = [line.split()[1] for line in shown.splitlines() if line.startswith("qdisc ")]
        if any(kind not in _DEFAULTS for kind in kinds):
            return False
        return _has_netem(run_program)
    except RankmendError:
        return False


def _has_netem(run: Callable[[list[str]], bytes]) -> bool:
    """Ask the kernel to put netem on a device that is not there: one without netem says so first."""
    try:
        run(["tc", "qdisc", "add", "dev", "lo", "parent", "ffff:fff1", "netem", "delay", "1us"])
    except RankmendError as error:
        return "qdisc kind is unknown" not in str(error)
    return False

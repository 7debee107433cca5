"""What a person asks `rankmend inject` for, parsed and within bounds. Pure."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from rankmend.errors import ConfigError
from recovery.lab.inject.fault import FACTS, FaultKind, TargetKind

FOR_S_MAX: Final = 86_400.0
PEERS_MAX: Final = 256
WORKERS_MAX: Final = 64
DELAY_S_MAX: Final = 10.0
SERVICES: Final = ("agent", "controller", "postgresql", "alertmanager")
LAUNCHER: Final = "launcher"
_INTERFACE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,14}")  # IFNAMSIZ is 16
_GPU: Final = re.compile(r"GPU-[0-9a-fA-F-]{8,64}")
_PCI: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(\.[0-7])?", re.IGNORECASE)
_ANSWER: Final = re.compile(r"[\x21-\x3c\x3e-\x7e]{1,200}=[\x20-\x7e]{0,200}")


@dataclass(frozen=True, slots=True)
class FaultTarget:
    """What is to be broken, as it was named."""

    kind: TargetKind
    name: str = ""  # job, path, interface, service or UUID of a GPU
    number: int | None = None  # rank, or pid

    def __str__(self) -> str:
        if self.kind is TargetKind.NODE:
            return "node"
        if self.kind is TargetKind.RANK and not self.name:
            return f"pid:{self.number}"
        tail = "" if self.number is None else f"/{self.number}"
        return f"{self.kind.value}:{self.name}{tail}"


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """How a fault is to be; each fault reads its own."""

    code: int | None = None  # of an exit, or an XID
    share: float | None = None  # 0 to 1
    rate_bytes_per_s: float | None = None
    bytes_max: float = 64e9  # that a leak takes at most
    delay_s: float | None = None
    workers: int = 1
    peers: tuple[str, ...] = ()
    mhz: int | None = None
    watts: int | None = None
    answer: str | None = None  # KEY=VALUES of the stand-in for NVML
    device: str | None = None  # PCI address
    to_kernel: bool = False  # --kmsg


@dataclass(frozen=True, slots=True)
class FaultRequest:
    fault: FaultKind
    target: FaultTarget
    for_s: float
    options: FaultOptions
    at_unix_s: float | None = None  # the moment at which it is made; None: at once


@dataclass(frozen=True, slots=True)
class _Bound:
    """What an option of a fault may be."""

    name: str
    option: str
    least: float
    most: float
    is_needed: bool = True


_BOUNDS: Final[Mapping[FaultKind, tuple[_Bound, ...]]] = {
    FaultKind.EXIT_CODE: (_Bound("code", "--code", 1, 255),),
    FaultKind.XID: (_Bound("code", "--code", 1, 99_999),),
    FaultKind.SXID: (_Bound("code", "--code", 1, 99_999),),
    FaultKind.CPU_QUOTA: (_Bound("share", "--share", 0.01, 1),),
    FaultKind.LOSS: (_Bound("share", "--share", 0.0001, 1),),
    FaultKind.MEMORY_LEAK: (
        _Bound("rate_bytes_per_s", "--rate", 1, 1e12, is_needed=False),
        _Bound("bytes_max", "--most", 1, 1e13),
    ),
    FaultKind.BANDWIDTH: (_Bound("rate_bytes_per_s", "--rate", 1024, 1e11),),
    FaultKind.DELAY: (_Bound("delay_s", "--delay", 0.0001, DELAY_S_MAX),),
    FaultKind.CORE_LOAD: (_Bound("workers", "--workers", 1, WORKERS_MAX),),
    FaultKind.GPU_CLOCKS: (_Bound("mhz", "--mhz", 100, 5000),),
    FaultKind.GPU_POWER: (_Bound("watts", "--watts", 10, 5000),),
}


def parse_target(text: str) -> FaultTarget:
    """Return the target that ``--on`` names; raise ConfigError with the value."""
    kind, _, name = text.partition(":")
    found = FaultTarget(TargetKind.NODE) if text == "node" else None
    if kind in _PARSERS:
        found = _PARSERS[kind](name)
    if found is None:
        raise ConfigError(
            f"--on {text!r:.120}: want rank:JOB/RANK, pid:PID, node, path:/FOLDER, interface:NAME, gpu:GPU-UUID, "
            f"service:launcher/JOB or service:NAME[/PID] of {', '.join(SERVICES)}"
        )
    return found


def _number(text: str, most: int) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) <= 10
    return int(text) if is_number and int(text) <= most else None


def _pid(name: str) -> FaultTarget | None:
    pid = _number(name, 1 << 22)
    return None if pid is None or pid < 2 else FaultTarget(TargetKind.RANK, number=pid)


def _rank(name: str) -> FaultTarget | None:
    job, _, number = name.rpartition("/")
    rank = _number(number, 10_000_000)
    return None if rank is None or not job else FaultTarget(TargetKind.RANK, job, rank)


def _path(name: str) -> FaultTarget | None:
    is_path = name.startswith("/") and "\0" not in name and len(name) < 4096
    return FaultTarget(TargetKind.PATH, name) if is_path else None


def _interface(name: str) -> FaultTarget | None:
    return FaultTarget(TargetKind.INTERFACE, name) if _INTERFACE.fullmatch(name) else None


def _gpu(name: str) -> FaultTarget | None:
    return FaultTarget(TargetKind.GPU, name) if _GPU.fullmatch(name) else None


def _service(name: str) -> FaultTarget | None:
    service, _, which = name.partition("/")
    if service == LAUNCHER:
        return FaultTarget(TargetKind.SERVICE, name) if which else None
    pid = _number(which, 1 << 22)
    if service not in SERVICES or (which and (pid is None or pid < 2)):
        return None
    return FaultTarget(TargetKind.SERVICE, service, pid)


_PARSERS: Final[Mapping[str, Callable[[str], FaultTarget | None]]] = {
    "pid": _pid,
    "rank": _rank,
    "path": _path,
    "interface": _interface,
    "gpu": _gpu,
    "service": _service,
}


def check_request(request: FaultRequest) -> None:
    """Raise ConfigError where the fault does not fit its target, or an option is missing or out of range."""
    fault, options = request.fault, request.options
    facts = FACTS[fault]
    if request.target.kind not in facts.targets:
        wanted = " or ".join(kind.value for kind in facts.targets)
        raise ConfigError(f"{fault.value} is made on a {wanted}, not on {request.target}")
    if not 0 < request.for_s <= FOR_S_MAX:
        raise ConfigError(
            f"--for {request.for_s:g} s: want more than 0 and at most {FOR_S_MAX:g} s"
        )
    _check_options(fault, options)
    _check_peers(options.peers)


def _check_options(fault: FaultKind, options: FaultOptions) -> None:
    for bound in _BOUNDS.get(fault, ()):
        value = getattr(options, bound.name)
        if value is None and bound.is_needed:
            raise ConfigError(
                f"{fault.value} needs {bound.option}, from {bound.least:g} to {bound.most:g}"
            )
        if value is not None and not bound.least <= value <= bound.most:
            raise ConfigError(f"{bound.option} {value:g}: want {bound.least:g} to {bound.most:g}")
    is_coded = fault in (FaultKind.XID, FaultKind.SXID)
    if is_coded and (options.device is None or not _PCI.fullmatch(options.device)):
        raise ConfigError(
            f"--device {options.device!r:.80}: want a PCI address such as 0000:3b:00.0"
        )
    if options.to_kernel and not is_coded:
        raise ConfigError(f"--kmsg is for xid and sxid, not for {fault.value}")
    if fault is FaultKind.PARTITION and not options.peers:
        raise ConfigError("partition: name at least one --peer, the address to lose")
    if fault is FaultKind.GPU_STUB and not _ANSWER.fullmatch(options.answer or ""):
        raise ConfigError(f"--answer {options.answer!r:.120}: want KEY=VALUES, such as 0/lost=1")


def _check_peers(peers: tuple[str, ...]) -> None:
    if len(peers) > PEERS_MAX:
        raise ConfigError(f"{len(peers)} peers: at most {PEERS_MAX}")
    divide_peers(peers)


def divide_peers(peers: tuple[str, ...]) -> tuple[list[IPv4Address], list[IPv6Address]]:
    """Return the addresses by family; raise ConfigError for one that is none."""
    fours, sixes = [], []
    for peer in peers:
        try:
            address = ip_address(peer)
        except ValueError as error:
            raise ConfigError(f"--peer {peer!r:.80} is not an IP address") from error
        if isinstance(address, IPv4Address):
            fours.append(address)
        else:
            sixes.append(address)
    return fours, sixes

"""Finds the RDMA port of a rail, and the ib_write_bw that tests it.

Sources: Linux Documentation/ABI/stable/sysfs-class-infiniband (state, link_layer), ABI/testing/sysfs-class-infiniband (gids, gid_attrs);
https://github.com/linux-rdma/perftest, src/perftest_parameters.c and src/perftest_communication.c, versions 4.4 to 26.04.
"""

import math
import re
import resource
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Final

from rankmend.errors import NoSourceError, SourceError
from recovery.lab.fabric.tied_programs import ProgramEnd, TiedPrograms

SYSFS: Final = Path("/sys")
ACTIVE: Final = "4"  # IB_PORT_ACTIVE of rdma/ib_verbs.h
ROCE_V2: Final = "RoCE v2"
_DEVICE: Final = re.compile(r"(?P<device>[A-Za-z0-9_.-]{1,64})(:(?P<port>\d{1,3}))?")

PROGRAM: Final = "ib_write_bw"
HELP_S_MAX: Final = 20.0
# Beyond the time of sending: it opens the device, waits a second on purpose, pins memory and connects queue pairs.
SETUP_S_MAX: Final = 20.0
_TEXT_MAX: Final = 250
# Its server listens on this address only, from 23.07 on. 4.5 has `--source_ip`, which its parser takes for another option.
_BIND: Final = "--bind_source_ip"
# The same versions meet at IPv6 addresses, where both ends get that option.
_MEET_OVER_IPV6: Final = "--ipv6-addr"
_IPV6_GID: Final = "--ipv6"  # where it chooses the GID itself
_MARK: Final = "--ib-dev"  # an option of every version


@dataclass(frozen=True, slots=True)
class RailPort:
    """The port of a rail: device and port, whether it is ACTIVE, and its GID for RoCE v2.

    A port of RoCE names its network interface for each GID (gid_attrs/ndevs), so bonds, VLANs and
    soft RoCE are found as well. A port of InfiniBand is found by the device that it shares with its
    IPoIB interface, whose ``dev_port`` counts ports from 0.
    """

    device: str
    port: int
    is_ethernet: bool  # RoCE, else InfiniBand
    interface: str | None = None  # that lies on the port; None: no interface does
    gid_index: int | None = None  # for RoCE; None: the program chooses

    @property
    def name(self) -> str:
        return f"{self.device}:{self.port}"


def find_port(sysfs: Path, rail: str, address: str = "") -> RailPort:
    """Return the port of a rail: an interface, or DEVICE[:PORT] such as mlx5_0.

    ``address``: of the rail, by which a GID is chosen. Raises NoSourceError where there is none, SourceError where it is not ACTIVE.
    """
    port = port_of_interface(sysfs, rail) or _named_port(sysfs, rail)
    if port is None:
        raise NoSourceError(f"{rail} has no RDMA device")
    number, _colon, name = _read(_folder(sysfs, port) / "state").partition(":")
    if number.strip() != ACTIVE:
        raise SourceError(f"RDMA port {port.name} is {name.strip() or number!r}, not ACTIVE")
    if not port.is_ethernet:
        return port
    index = _choose_gid(_folder(sysfs, port), port.interface, address)
    return RailPort(port.device, port.port, True, port.interface, index)


def interface_of(sysfs: Path, rail: str) -> str | None:
    """Return the interface on the port of a rail named as DEVICE[:PORT]; None where no interface lies there."""
    port = _named_port(sysfs, rail)
    return port.interface if port is not None else None


def is_device(sysfs: Path, rail: str) -> bool:
    return _named_port(sysfs, rail) is not None


def active_ports(sysfs: Path) -> tuple[str, ...]:
    """Return the names of all ports that are ACTIVE, for people who look for one."""
    found = []
    for folder in _ports(sysfs):
        try:
            if _read(folder / "state").partition(":")[0].strip() == ACTIVE:
                found.append(f"{folder.parent.parent.name}:{folder.name}")
        except SourceError:
            continue
    return tuple(found)


def port_of_interface(sysfs: Path, interface: str) -> RailPort | None:
    """Return the port that an interface lies on, ACTIVE or not; None where it lies on none."""
    for folder in _ports(sysfs):
        if interface in dict.fromkeys(name for _index, name in _interfaces(folder)):
            return _describe(folder, interface)
    net = sysfs / "class" / "net" / interface
    try:
        device = next(iter(sorted((net / "device" / "infiniband").iterdir()))).name
        number = int(_read(net / "dev_port")) + 1
    except (OSError, StopIteration, SourceError, ValueError):
        return None
    folder = sysfs / "class" / "infiniband" / device / "ports" / str(number)
    return _describe(folder, interface) if folder.is_dir() else None


def _named_port(sysfs: Path, rail: str) -> RailPort | None:
    found = _DEVICE.fullmatch(rail)
    if found is None:
        return None
    folder = sysfs / "class" / "infiniband" / found["device"] / "ports" / (found["port"] or "1")
    if not folder.is_dir():
        return None
    interface = next((name for _index, name in _interfaces(folder)), None)
    return _describe(folder, interface or _ipoib(sysfs, found["device"], int(folder.name)))


def _ipoib(sysfs: Path, device: str, port: int) -> str | None:
    try:
        nets = sorted((sysfs / "class" / "infiniband" / device / "device" / "net").iterdir())
    except OSError:
        return None
    for net in nets:
        try:
            if int(_read(sysfs / "class" / "net" / net.name / "dev_port")) + 1 == port:
                return net.name
        except (SourceError, ValueError):
            continue
    return None


def _describe(folder: Path, interface: str | None) -> RailPort:
    is_ethernet = _read(folder / "link_layer") == "Ethernet"
    return RailPort(folder.parent.parent.name, int(folder.name), is_ethernet, interface)


def _choose_gid(folder: Path, interface: str | None, address: str) -> int | None:
    """Return the index of a GID for RoCE v2 on the interface: that of the rail's address, else the first."""
    usable = [
        index
        for index, name in _interfaces(folder)
        if interface in (None, name) and _read_or(folder / f"gid_attrs/types/{index}") == ROCE_V2
    ]
    wanted = _gid_of(address)
    own = [index for index in usable if _read_or(folder / f"gids/{index}") == wanted]
    return next(iter(own or usable), None)


def _gid_of(address: str) -> str | None:
    """Return an address as sysfs shows its GID: IPv4 is mapped."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return None
    if not isinstance(parsed, IPv4Address):
        return parsed.exploded
    raw = parsed.packed.hex()
    return f"0000:0000:0000:0000:0000:ffff:{raw[:4]}:{raw[4:]}"


def _interfaces(folder: Path) -> Iterator[tuple[int, str]]:
    """Yield index and interface of each GID, by index; an unused index can't be read."""
    try:
        entries = [
            entry for entry in (folder / "gid_attrs/ndevs").iterdir() if entry.name.isdigit()
        ]
    except OSError:
        return
    for entry in sorted(entries, key=lambda entry: int(entry.name)):
        if name := _read_or(entry):
            yield int(entry.name), name


def _ports(sysfs: Path) -> list[Path]:
    folders = (sysfs / "class" / "infiniband").glob("*/ports/*")
    return sorted(folder for folder in folders if folder.name.isdigit())


def _folder(sysfs: Path, port: RailPort) -> Path:
    return sysfs / "class" / "infiniband" / port.device / "ports" / str(port.port)


def _read_or(path: Path) -> str | None:
    try:
        return _read(path)
    except SourceError:
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"cannot read {path}: {error}") from error


@dataclass(frozen=True, slots=True)
class Perftest:
    """`ib_write_bw` of perftest as installed on this node: its path, its options, and its command line."""

    path: str
    binds: bool  # it can listen on one address
    has_ipv6: bool = False  # it can meet the other end at an IPv6 address

    def words(
        self, port: RailPort, address: str, tcp_port: int, seconds: int, server: str | None
    ) -> list[str]:
        """Return the command line. ``address``: this node's, for the exchange. ``server``: the other end's; None: this end is the server."""
        words = [self.path, "-d", port.device, "-i", str(port.port), "-p", str(tcp_port)]
        words += ["-D", str(seconds), "-F"]  # -F: no word about processors of changing speed
        if port.gid_index is not None:
            words += ["-x", str(port.gid_index)]
        if ":" in address:
            words.append(_MEET_OVER_IPV6)
            words += [_IPV6_GID] if port.is_ethernet and port.gid_index is None else []
        if self.binds:
            words += [_BIND, address]
        return words if server is None else [*words, server]


def find_perftest() -> Perftest:
    """Return the installed program. Raises NoSourceError where it is missing, SourceError where it does not run."""
    path = shutil.which(PROGRAM)
    if path is None:
        raise NoSourceError(f"{PROGRAM} is not installed (Debian, Ubuntu, RHEL: perftest)")
    with TiedPrograms().run([path, "--help"], "") as program:
        end = program.wait(HELP_S_MAX)
    reported = end.output + end.errors
    if _MARK not in reported:  # --help ends with 1 in some versions
        how = f"ended with {end.code}" if end.code is not None else f"hung for {HELP_S_MAX:g} s"
        raise SourceError(
            f"{path} is not perftest's {PROGRAM}: --help {how}: {_last_words(reported)}"
        )
    known = {
        option: re.search(rf"^\s*{option}\b", reported, re.MULTILINE) is not None
        for option in (_BIND, _MEET_OVER_IPV6)
    }
    return Perftest(path, known[_BIND], known[_MEET_OVER_IPV6])


def whole_seconds(seconds: float) -> int:
    """Return for how long it should send: it counts whole seconds."""
    return max(1, math.ceil(seconds))


def failure_of(end: ProgramEnd, limit_s: float) -> str:
    """Return what went wrong, in the program's own last words."""
    reported = _last_words(end.errors) if end.errors.strip() else _last_words(end.output)
    if end.code is None:
        return f"{PROGRAM} did not end within {limit_s:.0f} s and was killed; its last output: {reported}"
    limit, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    lock = "" if limit == resource.RLIM_INFINITY else f" (ulimit -l here: {limit >> 10} KiB)"
    return f"{PROGRAM} ended with {end.code}: {reported}{lock}"


def _last_words(text: str) -> str:
    """Return the last lines as one, as many as fit: the cause stands above the line about the failure."""
    retained: list[str] = []
    for line in reversed([line.strip() for line in text.splitlines() if line.strip(" *-\t")]):
        if retained and len(line) + sum(map(len, retained)) > _TEXT_MAX:
            break
        retained.insert(0, line[:_TEXT_MAX])
        if len(retained) == 5:
            break
    return "; ".join(retained) or "nothing"

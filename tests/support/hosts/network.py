"""The links between test hosts: bridges in a network namespace of their own, and what can happen to them.

Each host has a port on one bridge of each plane. On the first plane the hosts may stand below leaf switches:
bridges of their own, each joined to the spine by one uplink.
A fault belongs to the cable or the switch, so it stays when the host behind it loses its power.
"""

import contextlib
import ctypes
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.eventually import DEADLINE_S
from tests.support.faults import slow_cable
from tests.support.hosts.machine import CLONE_NEWNET, setns

_TBF_BURST_BYTES_MIN = 32 * 1024
_TICKS_PER_S = 100  # the slowest kernel timer; tbf needs a burst of at least one tick's bytes
_TBF_LATENCY_MS = 50  # how long a packet may queue before it is dropped: a switch's buffer
_SIOCETHTOOL = 0x8946
_ETHTOOL_STXCSUM = 0x17


class NetworkError(RuntimeError):
    """A command that sets up or changes the network failed."""


def run_in_network(pid: int, argv: Sequence[str], text: str = "") -> str:
    """Run a tool of this machine in the network namespace of a process."""
    done = subprocess.run(
        ["nsenter", "-t", str(pid), "-n", "--", *argv],
        input=text,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode != 0:
        raise NetworkError(f"{' '.join(argv)} failed: {done.stderr.strip()}\n{text}")
    return done.stdout


@contextlib.contextmanager
def joined_network(pidfd: int) -> Iterator[None]:
    """Have this thread be in the network namespace of a process; a socket stays where it was made."""
    with Path("/proc/thread-self/ns/net").open("rb") as home:
        setns(pidfd, CLONE_NEWNET)
        try:
            yield
        finally:
            setns(home.fileno(), CLONE_NEWNET)


def _set_checksums(pid: int, device: str, *, is_offloaded: bool) -> None:
    """Say whether a device leaves checksums (and cutting into frames) to whoever is behind it."""
    value = (ctypes.c_uint32 * 2)(_ETHTOOL_STXCSUM, is_offloaded)
    pidfd = os.pidfd_open(pid)
    try:
        with joined_network(pidfd), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            request = struct.pack("16sP16x", device.encode(), ctypes.addressof(value))
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
    finally:
        os.close(pidfd)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a host stands on a plane."""

    host: str
    number: int  # of the host, from 1
    plane: int

    @property
    def port(self) -> str:
        """Name of the switch's end of the cable; the host's end is `device`."""
        return f"{self.host}.{self.plane}"

    @property
    def bridge_ports(self) -> str:
        """The names, as a set of nftables, by which a bridge may know the cable: see `Network.set_delay`."""
        return f'{{ "{self.port}", "{self.port}d" }}'

    @property
    def device(self) -> str:
        return f"eth{self.plane}"

    @property
    def ip(self) -> str:
        return f"10.77.{self.plane}.{self.number}"

    @property
    def mac(self) -> str:
        return f"02:77:00:00:{self.plane:02x}:{self.number:02x}"


@dataclass(slots=True)
class _Cable:
    bridge: str
    cuts: int = 0  # it carries while nobody cuts it
    rate_bytes_per_s: float | None = None
    delay_s: float | None = None
    delayer: subprocess.Popen[bytes] | None = None
    host_pid: int | None = None  # None: unplugged, or a cable between two switches


class Network:
    """The switches of one fleet."""

    def __init__(
        self,
        switch_pid: int,
        planes: Sequence[str],
        leaf_of: dict[str, str],
        addresses: Iterable[Address],
    ) -> None:
        self._pid = switch_pid
        self._planes = tuple(planes)
        self._cables: dict[str, _Cable] = {}
        self._faults = 0
        for address in addresses:
            spine = planes[address.plane]
            bridge = leaf_of.get(address.host, spine) if address.plane == 0 else spine
            self._cables[address.port] = _Cable(bridge)
        leaves = sorted(set(leaf_of.values()))
        lines = ["link set lo up"]
        for bridge in (*planes, *leaves):
            lines += [f"link add {bridge} type bridge", f"link set {bridge} up"]
        for leaf in leaves:
            self._cables[f"{leaf}.up"] = _Cable(leaf)
            lines += [
                f"link add {leaf}.up type veth peer name {leaf}.down",
                f"link set {leaf}.up master {leaf} up",
                f"link set {leaf}.down master {planes[0]} up",
            ]
        self._ip(lines)

    def plug_in(self, hosts: dict[int, Sequence[Address]]) -> None:
        """Lay a cable to each address of each host, named by its PID 1, in the state that its port is in."""
        lines = []
        for pid, addresses in hosts.items():
            for each in addresses:
                cable = self._cables[each.port]
                cable.host_pid = pid
                state = "down" if cable.cuts else "up"
                lines.append(
                    f"link add {each.port} type veth peer name {each.device} address {each.mac} netns {pid}"
                )
                lines.append(f"link set {each.port} master {cable.bridge} {state}")
        self._ip(lines)
        for pid, addresses in hosts.items():
            lines = ["link set lo up"]
            for each in addresses:
                lines += [
                    f"addr add {each.ip}/24 dev {each.device}",
                    f"link set {each.device} up",
                ]
            run_in_network(pid, ["ip", "-batch", "-"], "\n".join(lines) + "\n")
            for each in addresses:
                self._shape(each)
                self._start_delay(each)

    def unplug(self, addresses: Iterable[Address]) -> None:
        """Take the cables out: whoever is behind them is silent from now on, and sends no farewell."""
        addresses = list(addresses)
        for each in addresses:
            self._stop_delay(each)
            self._cables[each.port].host_pid = None
        self._ip([f"link del {each.port}" for each in addresses])

    def ports_of_switch(self, switch: str) -> list[str]:
        """Return the ports of a bridge: those of its hosts, and uplinks."""
        ports = [name for name, cable in self._cables.items() if cable.bridge == switch]
        if switch == self._planes[0]:
            ports += [name for name in self._cables if name.endswith(".up") and name not in ports]
        if not ports:
            raise ValueError(f"no switch called {switch!r}, or nothing on it")
        return ports

    def cut(self, ports: Iterable[str], by: int) -> None:
        """Count a cut of each port more (1) or less (-1); a port is up when nothing cuts it."""
        lines = []
        for port in ports:
            cable = self._cables[port]
            cable.cuts += by
            if cable.host_pid is not None or port.endswith(".up"):
                lines.append(f"link set {port} {'down' if cable.cuts else 'up'}")
        self._ip(lines)

    def drop(self, rules: Iterable[tuple[str, str]]) -> str:
        """Drop frames by rules of (hook, match) and return the name under which `pass_again` ends it."""
        self._faults += 1
        name = f"fault{self._faults}"
        lines = [f"add table bridge {name}"]
        for hook in ("prerouting", "postrouting"):
            lines.append(
                f"add chain bridge {name} {hook} {{ type filter hook {hook} priority 0; policy accept; }}"
            )
        lines += [f"add rule bridge {name} {hook} {match} drop" for hook, match in rules]
        run_in_network(self._pid, ["nft", "-f", "-"], "\n".join(lines) + "\n")
        return name

    def pass_again(self, name: str) -> None:
        run_in_network(self._pid, ["nft", "delete", "table", "bridge", name])

    def set_rate(self, address: Address, rate_bytes_per_s: float | None) -> None:
        """Have both directions of a cable carry so much; None: whatever it can."""
        cable = self._cables[address.port]
        if rate_bytes_per_s is not None and cable.rate_bytes_per_s is not None:
            raise ValueError(f"{address.port} is slow already: {cable.rate_bytes_per_s} bytes/s")
        was_shaped, cable.rate_bytes_per_s = cable.rate_bytes_per_s is not None, rate_bytes_per_s
        if cable.host_pid is not None and rate_bytes_per_s is None and was_shaped:
            self._tc(self._pid, f"qdisc del dev {address.port} root")
            self._tc(cable.host_pid, f"qdisc del dev {address.device} root")
        self._shape(address)

    def set_uplink_rate(self, leaf: str, rate_bytes_per_s: float | None) -> None:
        """Have both directions of a leaf switch's uplink carry so much; None: whatever it can."""
        for device in (f"{leaf}.up", f"{leaf}.down"):
            if rate_bytes_per_s is None:
                self._tc(self._pid, f"qdisc del dev {device} root")
            else:
                self._tc(self._pid, f"qdisc add dev {device} root {_tbf(rate_bytes_per_s)}")

    def set_delay(self, address: Address, delay_s: float | None) -> None:
        """Have each direction of a cable take so long; None: no time.

        Between the cable and its bridge stands a TAP device then, called as the port with a d behind it.
        """
        cable = self._cables[address.port]
        if delay_s is not None and cable.delay_s is not None:
            raise ValueError(f"{address.port} is delayed already: {cable.delay_s} s")
        cable.delay_s = delay_s
        if delay_s is None:
            self._stop_delay(address)
        else:
            self._start_delay(address)

    def close(self) -> None:
        for cable in self._cables.values():
            _end(cable)

    def _start_delay(self, address: Address) -> None:
        cable = self._cables[address.port]
        if cable.host_pid is None or cable.delay_s is None:
            return
        # A frame that leaves the kernel must be complete: no checksum left to a card.
        _set_checksums(cable.host_pid, address.device, is_offloaded=False)
        script = slow_cable.__file__
        tap = f"{address.port}d"
        program = [sys.executable, "-ESs", script, address.port, tap, str(cable.delay_s)]
        cable.delayer = subprocess.Popen(
            ["nsenter", "-t", str(self._pid), "-n", "--", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert cable.delayer.stdout is not None
        is_heard = select.select([cable.delayer.stdout], [], [], DEADLINE_S)[0]
        if not is_heard or cable.delayer.stdout.readline() != b"ready\n":
            _end(cable)
            raise NetworkError(f"the program that delays {address.port} did not start")
        self._ip([f"link set {address.port} nomaster", f"link set {tap} master {cable.bridge} up"])

    def _stop_delay(self, address: Address) -> None:
        cable = self._cables[address.port]
        if cable.delayer is None:
            return
        _end(cable)
        self._ip([f"link set {address.port} master {cable.bridge}"])
        if cable.host_pid is not None:
            _set_checksums(cable.host_pid, address.device, is_offloaded=True)

    def _shape(self, address: Address) -> None:
        cable = self._cables[address.port]
        if cable.host_pid is None or cable.rate_bytes_per_s is None:
            return
        tbf = _tbf(cable.rate_bytes_per_s)
        self._tc(self._pid, f"qdisc add dev {address.port} root {tbf}")
        self._tc(cable.host_pid, f"qdisc add dev {address.device} root {tbf}")

    def _ip(self, lines: Iterable[str]) -> None:
        if text := "".join(f"{line}\n" for line in lines):
            run_in_network(self._pid, ["ip", "-batch", "-"], text)

    @staticmethod
    def _tc(pid: int, line: str) -> None:
        run_in_network(pid, ["tc", *line.split()])


def _tbf(rate_bytes_per_s: float) -> str:
    bits = round(rate_bytes_per_s * 8)
    burst = max(_TBF_BURST_BYTES_MIN, round(rate_bytes_per_s / _TICKS_PER_S))
    return f"tbf rate {bits}bit burst {burst} latency {_TBF_LATENCY_MS}ms"


def _end(cable: _Cable) -> None:
    delayer, cable.delayer = cable.delayer, None
    if delayer is not None:
        delayer.kill()
        delayer.communicate()  # reaps it and closes the pipes

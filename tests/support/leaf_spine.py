"""A network of leaf and spine routers out of network namespaces, in which the kernel's own hash chooses among the paths (ECMP).

Needs root, iproute2 and util-linux, as test hosts do. All of it ends with the test process.
"""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.support.eventually import eventually
from tests.support.hosts.network import run_in_network

_SETTINGS = {
    "net.ipv4.ip_forward": 1,
    # Addresses, protocol and ports, as policy 1, which takes the hash of the sender's socket where a packet has one. Over a real cable it
    # has none; over a veth pair it has, and that is a random number.
    "net.ipv4.fib_multipath_hash_policy": 3,
    "net.ipv4.fib_multipath_hash_fields": 0x37,
    "net.ipv4.icmp_errors_use_inbound_ifaddr": 1,  # as routers do
    "net.ipv4.icmp_ratelimit": 0,
    "net.ipv4.icmp_msgs_per_sec": 100_000,
    "net.ipv4.conf.all.rp_filter": 0,
    "net.ipv4.conf.default.rp_filter": 0,
}


class LeafSpine:
    """Hosts h1, h2, ... below leaves; each leaf has one link to each spine, which carries ``link_bytes_per_s``."""

    def __init__(
        self, leaves: int, hosts_per_leaf: int, spines: int, link_bytes_per_s: float
    ) -> None:
        self.leaves, self.hosts_per_leaf, self.spines = leaves, hosts_per_leaf, spines
        self._link_bytes_per_s = link_bytes_per_s
        self.hosts = [f"h{number + 1}" for number in range(leaves * hosts_per_leaf)]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "LeafSpine":
        try:
            leaf_names = [f"leaf{number}" for number in range(self.leaves)]
            spine_names = [f"spine{number}" for number in range(self.spines)]
            for name in (*self.hosts, *leaf_names, *spine_names):
                self._processes[name] = self._start(name)
            for name in self._processes:
                self._wait_until_apart(name)
            self._lay()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def leaf_of(self, host: str) -> str:
        return f"leaf{self.hosts.index(host) // self.hosts_per_leaf}"

    def address(self, host: str) -> str:
        leaf, place = divmod(self.hosts.index(host), self.hosts_per_leaf)
        return f"10.{leaf}.{place}.2"

    def spine_of(self, source: str, target: str, protocol: str, port: int, target_port: int) -> str:
        """Return the address at the spine to which the kernel of the source's leaf sends such a flow."""
        told = run_in_network(
            self.pid(self.leaf_of(source)),
            ["ip", "route", "get", self.address(target), "from", self.address(source), "iif", f"to-{source}",
             "ipproto", protocol, "sport", str(port), "dport", str(target_port)],
        )  # fmt: skip
        found = re.search(r"\bvia (\S+)", told)
        assert found is not None, told
        return found[1]

    def _start(self, name: str) -> "subprocess.Popen[bytes]":
        script = f"hostname {name} && exec sleep infinity"
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--uts", "sh", "-c", script]
        )

    def _wait_until_apart(self, name: str) -> None:
        own = Path("/proc/self/ns/uts").readlink()
        process = Path(f"/proc/{self.pid(name)}")

        def is_apart() -> bool:
            program = (process / "cmdline").read_bytes().split(b"\0")[0]
            return (process / "ns/uts").readlink() != own and b"sleep" in program

        eventually(is_apart, f"{name} has a namespace of its own")

    def _lay(self) -> None:
        for name in self._processes:
            text = "\n".join(f"{key}={value}" for key, value in _SETTINGS.items())
            run_in_network(self.pid(name), ["sysctl", "-q", "-p", "-"], text)
            self._ip(name, ["link set lo up"])
        for host in self.hosts:
            leaf, (number, place) = (
                self.leaf_of(host),
                divmod(self.hosts.index(host), self.hosts_per_leaf),
            )
            self._ip(leaf, [
                f"link add to-{host} type veth peer name eth0 netns {self.pid(host)}",
                f"addr add 10.{number}.{place}.1/30 dev to-{host}", f"link set to-{host} up",
            ])  # fmt: skip
            self._ip(host, [
                f"addr add {self.address(host)}/30 dev eth0", "link set eth0 up",
                f"route add default via 10.{number}.{place}.1",
            ])  # fmt: skip
        for leaf in range(self.leaves):
            for spine in range(self.spines):
                self._join(leaf, spine)
        for leaf in range(self.leaves):
            hops = " ".join(
                f"nexthop via 172.16.{leaf * self.spines + spine}.2" for spine in range(self.spines)
            )
            others = [other for other in range(self.leaves) if other != leaf]
            self._ip(f"leaf{leaf}", [f"route add 10.{other}.0.0/16 {hops}" for other in others])

    def _join(self, leaf: int, spine: int) -> None:
        net = f"172.16.{leaf * self.spines + spine}"
        self._ip(f"leaf{leaf}", [
            f"link add up{spine} type veth peer name down{leaf} netns {self.pid(f'spine{spine}')}",
            f"addr add {net}.1/30 dev up{spine}", f"link set up{spine} up",
        ])  # fmt: skip
        self._ip(f"spine{spine}", [
            f"addr add {net}.2/30 dev down{leaf}", f"link set down{leaf} up",
            f"route add 10.{leaf}.0.0/16 via {net}.1",
        ])  # fmt: skip
        bits = round(self._link_bytes_per_s * 8)
        for name, device in ((f"leaf{leaf}", f"up{spine}"), (f"spine{spine}", f"down{leaf}")):
            run_in_network(
                self.pid(name),
                f"tc qdisc add dev {device} root tbf rate {bits}bit burst 32768 latency 200ms".split(),
            )

    def _ip(self, name: str, lines: Sequence[str]) -> None:
        run_in_network(self.pid(name), ["ip", "-batch", "-"], "\n".join(lines) + "\n")

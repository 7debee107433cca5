"""Several hosts on one machine, out of namespaces."""

import atexit
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import psutil

from tests.support.eventually import DEADLINE_S, eventually
from tests.support.faults import storage
from tests.support.faults.fault import Fault
from tests.support.faults.network import loss_rules, partition_rules
from tests.support.hosts.machine import (
    BOOT_ID,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWTIME,
    CLONE_NEWUTS,
    OWN_FOLDERS,
    Machine,
    fork_sibling,
    setns,
    thaw,
)
from tests.support.hosts.network import Address, Network, joined_network

ROOT = Path(__file__).resolve().parents[3]
_ALL = CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWTIME | CLONE_NEWUTS
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "nft": "nftables", "nsenter": "util-linux"}
_NAMESPACES = ("ipc", "mnt", "net", "pid", "time", "uts")
_CGROUPS = Path("/sys/fs/cgroup")
_CONTROLLERS = ("cpu", "cpuacct", "memory", "freezer")
_HOSTS_MAX = 250  # the last byte of an address
# What speaks of the machine underneath, not of the host.
_FOREIGN_VARIABLES = ("TMPDIR", "XDG_", "SLURM", "RANKMEND_NODE")
_FOLDER_BYTES_MAX = 256 << 20  # snapshots of the tests' jobs are a few MiB, and a test may fill it


class HostError(RuntimeError):
    """A host could not be started, or is not in the state that was asked for."""


def why_not() -> str:
    """Return why no fleet can be made here; empty when one can."""
    if os.geteuid() != 0:
        return "needs root for hosts out of namespaces"
    for name in _NAMESPACES:
        if not Path("/proc/self/ns", name).exists():
            return f"this kernel has no {name} namespaces"
    for tool, package in _TOOLS.items():
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Debian: {package})"
    return ""


class Process(subprocess.Popen[Any]):
    """A `subprocess.Popen` of a process within a host: a child of this one, with its pid out here.

    It leads a session of its own, and the host's PID 1 adopts what it leaves behind.
    """

    def __init__(
        self, argv: Sequence[str], pidfd: int, cgroups: Sequence[Path], cwd: Path, **options: Any
    ) -> None:
        groups = [os.open(folder / "cgroup.procs", os.O_WRONLY) for folder in cgroups]
        from_child, to_parent = os.pipe()

        def enter() -> None:
            for group in groups:
                os.write(group, b"0")
            setns(pidfd, _ALL)
            if pid := fork_sibling():  # only a new process is in the pid namespace
                os.write(to_parent, str(pid).encode())
                os._exit(0)
            os.setsid()
            os.chdir(cwd)

        try:
            super().__init__(argv, preexec_fn=enter, **options)
            os.waitpid(self.pid, 0)  # the one between: it has done its work
            self.pid = int(os.read(from_child, 32))
        except BaseException:
            os.set_blocking(from_child, False)
            with contextlib.suppress(OSError, ValueError):
                os.waitpid(int(os.read(from_child, 32)), 0)  # it could not become the program
            raise
        finally:
            for fd in (*groups, from_child, to_parent):
                os.close(fd)

    @property
    def inner_pid(self) -> int:
        """The pid by which the host itself knows the process."""
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
        raise HostError(f"process {self.pid} has no pid in a host any more")

    def kill_group(self) -> None:
        """Kill it and all of its session that has not left the group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class _Power:
    """A machine's two processes (machine.py), seen from the test."""

    def __init__(self, machine: Machine) -> None:
        self._name = machine.name
        self._supply = subprocess.Popen(
            [
                sys.executable,
                "-ESs",
                str(Path(__file__).with_name("machine.py")),
                machine.to_json(),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self.pid = 0
        self.pidfd = -1

    def wait_until_up(self) -> None:
        assert self._supply.stdout is not None
        is_ready = select.select([self._supply.stdout], [], [], DEADLINE_S)[0]
        line = self._supply.stdout.readline() if is_ready else b""
        said: dict[str, Any] = (
            json.loads(line) if line else {"error": f"nothing heard of it in {DEADLINE_S} s"}
        )
        if said["error"]:
            raise HostError(f"{self._name} did not start: {said['error']}")
        self.pid = said["pid"]
        self.pidfd = os.pidfd_open(self.pid)

    def off(self, children: Sequence[Process]) -> None:
        """Kill PID 1 and with it everything in its namespaces, and wait until all of it is gone."""
        assert self._supply.stdin is not None
        assert self._supply.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._supply.stdin.write(
                b"q"
            )  # its end alone could wait for a fork that holds the pipe

        def is_off() -> bool:
            for child in children:  # PID 1 is gone only when each of its namespace is reaped
                child.poll()
            return self._supply.poll() is not None

        eventually(is_off, f"{self._name} is gone: its PID 1 was killed", pause_s=0.002)
        self._supply.stdin.close()
        self._supply.stdout.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
        for child in children:
            child.wait(DEADLINE_S)


class Host:
    """One host of a fleet. Faults that concern it alone are methods here, and end with the fleet at the latest."""

    def __init__(self, fleet: "Fleet", number: int) -> None:
        self._fleet = fleet
        self.number = number
        self.name = f"h{number}"
        self.addresses = tuple(
            Address(self.name, number, plane) for plane in range(len(fleet.planes))
        )
        self.state = fleet.folder / self.name  # its disk: the same path within and without
        self.state.mkdir()
        self._boot_id = fleet.folder / f"{self.name}.boot_id"
        self._power: _Power | None = None
        self._children: list[Process] = []
        self._cgroups: list[Path] = []
        self._is_frozen = False
        self._disks: list[tuple[Path, Path]] = []

    def __repr__(self) -> str:
        return f"<host {self.name}, {'up' if self.is_up else 'down'}>"

    @property
    def address(self) -> str:
        """Its IP address on the first plane."""
        return self.addresses[0].ip

    @property
    def is_up(self) -> bool:
        return self._power is not None

    @property
    def pid(self) -> int:
        """The host's PID 1, by its pid out here."""
        return self._running().pid

    @property
    def boot_id(self) -> str:
        """What the host's own `/proc/sys/kernel/random/boot_id` says; a new one after each boot."""
        return self._boot_id.read_text(encoding="ascii").strip()

    def now_s(self) -> float:
        """Return the host's own CLOCK_MONOTONIC: what its processes stamp is of the future or long ago out here."""
        lines = Path(f"/proc/{self.pid}/timens_offsets").read_text(encoding="ascii").splitlines()
        seconds, nanoseconds = next(line.split()[1:] for line in lines if "monotonic" in line)
        return time.monotonic() + int(seconds) + int(nanoseconds) / 1e9

    def path(self, inside: str | Path) -> Path:
        """Return where a file of the host's own folders, such as /dev/shm/x, is found from out here."""
        return Path(f"/proc/{self.pid}/root", str(inside).lstrip("/"))

    # ------------------------------------------------------------------------------ processes

    def popen(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        **options: Any,
    ) -> Process:
        """Start a process in the host; ``env`` is added to the tests' own, ``options`` are Popen's."""
        power = self._running()
        if self._is_frozen:
            raise HostError(f"{self.name} is frozen: nothing can be started there")
        process = Process(
            [str(each) for each in argv],
            power.pidfd,
            self._cgroups,
            cwd or self.state,
            env={**self._environment(), **(env or {})},
            **options,
        )
        self._children = [each for each in self._children if each.poll() is None]
        self._children.append(process)
        return process

    def run(
        self,
        argv: Sequence[str | Path],
        timeout_s: float = DEADLINE_S,
        *,
        check: bool = True,
        text: str = "",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command in the host to its end, with its output as text; its group is killed at the timeout."""
        with self.popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                output, errors = process.communicate(text, timeout_s)
            except BaseException:
                process.kill_group()
                raise
        if check and process.returncode != 0:
            raise AssertionError(
                f"{self.name}: {list(argv)}: {process.returncode}\n{output}\n{errors}"
            )
        return subprocess.CompletedProcess(argv, process.returncode, output, errors)

    def processes(self, word: str = "") -> list[psutil.Process]:
        """Return the host's processes but PID 1, those whose command line holds a word."""
        namespace = Path(f"/proc/{self.pid}/ns/pid").readlink()
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                is_here = Path(f"/proc/{process.pid}/ns/pid").readlink() == namespace
                if is_here and process.pid != self.pid and word in " ".join(process.cmdline()):
                    found.append(process)
        return found

    @contextlib.contextmanager
    def network(self) -> Iterator[None]:
        """Have sockets that this thread makes in the block belong to the host.

        Names are looked up out here: connect to `address`, not to the name.
        """
        with joined_network(self._running().pidfd):
            yield

    # --------------------------------------------------------------------------------- faults

    def power_off(self) -> Fault:
        """Have the host lose its power: all is gone at once and no peer hears of it. The end boots it anew."""
        self._running()
        self._fleet.network.unplug(self.addresses)
        self._off()
        return self._fleet.fault(f"{self.name} without power", self._boot_unless_closing)

    def kill_processes(self) -> None:
        """Kill every process but PID 1; the kernel lives and closes their connections."""
        if self._is_frozen:
            raise HostError(f"{self.name} is frozen: a signal does not reach it")
        mine = self.processes()
        for number in (signal.SIGSTOP, signal.SIGKILL):  # none lives to tell of another's death
            for process in mine:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
        for child in self._children:
            child.wait(DEADLINE_S)
        psutil.wait_procs(mine, DEADLINE_S)

    def freeze(self) -> Fault:
        """Have every process of the host stand still, unlike SIGSTOP unseen by parents. Needs cgroups."""
        freezer = next((each for each in self._cgroups if (each / "freezer.state").exists()), None)
        if freezer is not None:
            file, text, shown = freezer / "freezer.state", "FROZEN", freezer / "freezer.state"
        elif self._cgroups and (self._cgroups[0] / "cgroup.freeze").exists():
            freezer = self._cgroups[0]
            file, text, shown = freezer / "cgroup.freeze", "1", freezer / "cgroup.events"
        else:
            raise HostError(f"{self.name} has no cgroup to freeze: Fleet(cgroups=True)")
        file.write_text(text, encoding="ascii")
        self._is_frozen = True
        fault = self._fleet.fault(f"{self.name} frozen", self._thaw)

        def is_frozen() -> bool:
            return not {"FROZEN", "frozen 1"}.isdisjoint(shown.read_text().splitlines())

        try:
            eventually(
                is_frozen, lambda: f"{self.name} is frozen: {shown.read_text()!r}", pause_s=0.002
            )
        except BaseException:
            fault.end()
            raise
        return fault

    def fill(self, folder: str | Path = "/dev/shm") -> Fault:
        """Fill one of the host's own file systems (/dev/shm, /tmp, /run, a disk) up to the last byte."""
        filled = storage.fill(self.path(folder))

        def undo() -> None:
            filled.end()
            if self.is_up:  # a disk is still full after a boot, and then found by another path
                (self.path(folder) / storage.FILL_NAME).unlink(missing_ok=True)

        return self._fleet.fault(f"{folder} of {self.name} full", undo)

    def add_disk(self, folder: Path, size_bytes: int) -> None:
        """Mount an ext4 of this size (8 MiB or more) on a folder of the host; its files survive a boot."""
        image = self._fleet.folder / f"{self.name}.disk{len(self._disks)}"
        with image.open("wb") as file:
            file.truncate(size_bytes)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True, timeout=DEADLINE_S)
        self._disks.append((image, folder))
        self._mount_disk(image, folder)

    def make_read_only(self, folder: Path) -> Fault:
        """Have a file system of the host refuse writes, as the kernel does after an error on disk."""
        self.run(["mount", "-o", "remount,ro", folder])

        def undo() -> None:
            if self.is_up:
                self.run(["mount", "-o", "remount,rw", folder])

        return self._fleet.fault(f"{folder} of {self.name} read-only", undo)

    # ------------------------------------------------------------------------- for the fleet

    def start_boot(self) -> None:
        """Switch the power on; `finish_boot` waits for the host."""
        assert self._power is None
        boots = self.number * 1000.0 if not self._boot_id.exists() else 10.0
        self._boot_id.write_text(f"{uuid.uuid4()}\n", encoding="ascii")
        self._cgroups = self._fleet.make_cgroups(self.name)
        self._power = _Power(
            Machine(
                self.name,
                has_files=True,
                uptime_s=boots,  # no two hosts agree on it, as nothing may compare their clocks
                folder_bytes_max=self._fleet.folder_bytes_max,
                binds=(
                    (str(self._boot_id), BOOT_ID),
                    (str(self._fleet.hosts_file), "/etc/hosts"),
                    (str(self.state), str(self.state)),
                    *self._fleet.binds,
                ),
                cgroups=tuple(str(folder) for folder in self._cgroups),
            )
        )

    def finish_boot(self) -> None:
        assert self._power is not None
        self._power.wait_until_up()

    def mount_disks(self) -> None:
        for image, folder in self._disks:
            self._mount_disk(image, folder)

    def close(self) -> None:
        if self._power is not None:
            self._off()

    def _off(self) -> None:
        power, self._power = self._running(), None
        self._is_frozen = False
        power.off(self._children)
        for child in self._children:
            _close_pipes(child)
        self._children.clear()

    def _boot_unless_closing(self) -> None:
        if not self._fleet.is_closing and not self.is_up:
            self._fleet.boot([self])

    def _thaw(self) -> None:
        if self.is_up:
            for folder in self._cgroups:
                thaw(folder)
        self._is_frozen = False

    def _mount_disk(self, image: Path, folder: Path) -> None:
        # The host does not see the image's folder, so the device is made out here.
        device = subprocess.run(
            ["losetup", "--find", "--show", str(image)],
            capture_output=True,
            text=True,
            check=True,
            timeout=DEADLINE_S,
        ).stdout.strip()
        try:
            self.run(["mkdir", "-p", folder])
            self.run(["mount", device, folder])
        finally:
            # While it is mounted this only marks the device: it goes when the last mount goes.
            subprocess.run(["losetup", "--detach", device], check=True, timeout=DEADLINE_S)

    def _running(self) -> _Power:
        if self._power is None:
            raise HostError(f"{self.name} has no power")
        return self._power

    def _environment(self) -> dict[str, str]:
        mine = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_FOREIGN_VARIABLES)
        }
        return {**mine, "HOME": str(self.state), "HOSTNAME": self.name}


class Fleet:
    """Hosts h1, h2, ... on one switch; see the package for an example."""

    def __init__(
        self,
        count: int,
        folder: Path,
        *,
        planes: Sequence[str] = ("data",),
        hosts_per_leaf: int | None = None,
        cgroups: bool = False,
        visible: Sequence[Path] = (),
        folder_bytes_max: int = _FOLDER_BYTES_MAX,
    ) -> None:
        if not 1 <= count <= _HOSTS_MAX:
            raise ValueError(f"a fleet has 1 to {_HOSTS_MAX} hosts, not {count}")
        self.folder = folder.resolve() / "fleet"
        self.folder.mkdir(parents=True)
        self.shared = (
            self.folder / "shared"
        )  # the parallel file system: one path on every host and out here
        self.shared.mkdir()
        self.planes = tuple(planes)
        self.folder_bytes_max = folder_bytes_max
        self.is_closing = False
        self.hosts_file = self.folder / "hosts"
        self.binds = _visible(
            [ROOT, Path(sys.prefix), Path(sys.base_prefix), self.shared, *visible]
        )
        self._has_cgroups = cgroups
        self._faults: list[Fault] = []
        self._token = f"rankmend-hosts-{uuid.uuid4().hex[:8]}"
        self._switch: _Power | None = None
        self._network: Network | None = None
        self._hosts = {f"h{number}": Host(self, number) for number in range(1, count + 1)}
        self._leaf_of = {
            host.name: f"leaf{(host.number - 1) // hosts_per_leaf + 1}"
            for host in self
            if hosts_per_leaf is not None
        }
        self.hosts_file.write_text(self._names(), encoding="ascii")

    def __enter__(self) -> "Fleet":
        atexit.register(self.close)
        try:
            self._switch = _Power(Machine("switch", False, 0.0, 0, (), ()))
            for host in self:
                host.start_boot()
            self._switch.wait_until_up()
            addresses = [address for host in self for address in host.addresses]
            self._network = Network(self._switch.pid, self.planes, self._leaf_of, addresses)
            self._connect(list(self))
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

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts.values())

    def __len__(self) -> int:
        return len(self._hosts)

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    @property
    def network(self) -> Network:
        if self._network is None:
            raise HostError("the fleet is not up: use it as `with Fleet(...) as fleet`")
        return self._network

    def close(self) -> None:
        """End every fault and every host. Nothing but the folder is left."""
        self.is_closing = True
        atexit.unregister(self.close)
        with contextlib.ExitStack() as stack:  # each of them, whatever happens to another
            if self._switch is not None:
                switch, self._switch = self._switch, None
                stack.callback(switch.off, [])
            for host in self:
                stack.callback(host.close)
            if self._network is not None:
                stack.callback(self._network.close)
            for fault in self._faults:
                stack.callback(fault.end)
        self._faults.clear()

    # --------------------------------------------------------------------------------- faults

    def cut(self, *hosts: Host, plane: str | None = None) -> Fault:
        """Have the cables of hosts carry nothing (no carrier), on one plane or on all."""
        ports = [address.port for address in self._addresses(hosts, plane)]
        return self._cut(ports, f"cable of {_names(hosts)} cut")

    def switch_down(self, switch: str) -> Fault:
        """Have a switch lose its power: each of its ports loses the carrier. Named by plane, or leaf1, leaf2, ..."""
        return self._cut(self.network.ports_of_switch(switch), f"{switch} down")

    def partition(
        self,
        one: Sequence[Host],
        other: Sequence[Host] | None = None,
        *,
        one_way: bool = False,
        plane: str | None = None,
    ) -> Fault:
        """Have hosts not reach others (all the rest), though every cable has a carrier.

        One way: nothing of ``one`` arrives at ``other``, and what ``other`` sends does arrive.
        """
        rest = [host for host in self if host not in one] if other is None else list(other)
        rules = []
        for index in self._plane_numbers(plane):
            near, far = (
                [each.addresses[index] for each in one],
                [each.addresses[index] for each in rest],
            )
            rules += partition_rules(near, far, passes_arp=one_way)
            if not one_way:
                rules += partition_rules(far, near, passes_arp=False)
        name = self.network.drop(rules)
        arrow = "->" if one_way else "|"
        return self.fault(
            f"{_names(one)} {arrow} {_names(rest)}", lambda: self.network.pass_again(name)
        )

    def lose(self, *hosts: Host, ratio: float, plane: str | None = None) -> Fault:
        """Have a share of all frames get lost on the way to and from hosts, at random."""
        name = self.network.drop(loss_rules(self._addresses(hosts, plane), ratio))
        return self.fault(
            f"{ratio:.0%} loss at {_names(hosts)}", lambda: self.network.pass_again(name)
        )

    def slow(self, *hosts: Host, bytes_per_s: float, plane: str | None = None) -> Fault:
        """Have the cables of hosts carry so many bytes a second in each direction."""
        what = f"{_names(hosts)} at {bytes_per_s} bytes/s"
        return self._set_each(
            self._addresses(hosts, plane), self.network.set_rate, bytes_per_s, what
        )

    def slow_uplink(self, leaf: str, *, bytes_per_s: float) -> Fault:
        """Have the uplink of a leaf switch carry so many bytes a second in each direction."""
        self.network.set_uplink_rate(leaf, bytes_per_s)
        return self.fault(
            f"uplink of {leaf} at {bytes_per_s} bytes/s",
            lambda: self.network.set_uplink_rate(leaf, None),
        )

    def delay(self, *hosts: Host, delay_s: float, plane: str | None = None) -> Fault:
        """Have all frames take so long on the way to hosts, and as long on the way from them. Not for load."""
        what = f"{_names(hosts)} delayed by {delay_s} s"
        return self._set_each(self._addresses(hosts, plane), self.network.set_delay, delay_s, what)

    def fault(self, what: str, undo: Callable[[], None]) -> Fault:
        """Keep a fault that ends with the fleet at the latest."""
        fault = Fault(what, undo)
        self._faults = [each for each in self._faults if each.is_standing]
        self._faults.append(fault)
        return fault

    # ----------------------------------------------------------------------------- for hosts

    def boot(self, hosts: Sequence[Host]) -> None:
        for host in hosts:
            host.start_boot()
        self._connect(hosts)

    def make_cgroups(self, name: str) -> list[Path]:
        """Make a host's cgroup below this process's own in each hierarchy, where they were asked for."""
        if not self._has_cgroups:
            return []
        made = []
        for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
            _number, controllers, path = line.split(":", 2)
            if not controllers and (_CGROUPS / "cgroup.controllers").exists():
                hierarchy = _CGROUPS
            elif controllers in _CONTROLLERS:
                hierarchy = _CGROUPS / controllers
            else:
                continue
            folder = hierarchy / path.lstrip("/") / f"{self._token}-{name}"
            folder.mkdir()
            made.append(folder)
        return made

    def _connect(self, hosts: Sequence[Host]) -> None:
        for host in hosts:
            host.finish_boot()
        self.network.plug_in({host.pid: host.addresses for host in hosts})
        for host in hosts:
            host.mount_disks()

    def _cut(self, ports: list[str], what: str) -> Fault:
        self.network.cut(ports, 1)
        return self.fault(what, lambda: self.network.cut(ports, -1))

    def _set_each(
        self,
        addresses: Sequence[Address],
        set_one: Callable[[Address, float | None], None],
        value: float,
        what: str,
    ) -> Fault:
        """Set a property of cables, each of which is put back at the end, also when one refuses."""
        with contextlib.ExitStack() as undone:
            for address in addresses:
                set_one(address, value)
                undone.callback(set_one, address, None)
            return self.fault(what, undone.pop_all().close)

    def _addresses(self, hosts: Sequence[Host], plane: str | None) -> list[Address]:
        planes = self._plane_numbers(plane)
        return [host.addresses[index] for host in hosts for index in planes]

    def _plane_numbers(self, plane: str | None) -> Sequence[int]:
        return range(len(self.planes)) if plane is None else [self.planes.index(plane)]

    def _names(self) -> str:
        """Return /etc/hosts: each host by its name, and as NAME-PLANE on the planes after the first."""
        lines = ["127.0.0.1 localhost"]
        for host in self:
            for address in host.addresses:
                plane = f"-{self.planes[address.plane]}" if address.plane else ""
                lines.append(f"{address.ip} {host.name}{plane}")
        return "\n".join(lines) + "\n"


def _names(hosts: Sequence[Host]) -> str:
    return ",".join(host.name for host in hosts)


def _visible(paths: Sequence[Path]) -> tuple[tuple[str, str], ...]:
    """Return binds for paths that lie in a folder of which each host has its own."""
    hidden = {
        str(path.absolute())
        for path in paths
        if any(path.absolute().is_relative_to(folder) for folder in OWN_FOLDERS)
    }
    return tuple((path, path) for path in sorted(hidden))


def _close_pipes(process: Process) -> None:
    pipes: tuple[IO[Any] | None, ...] = (process.stdin, process.stdout, process.stderr)
    for pipe in pipes:
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()

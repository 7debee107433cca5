"""Faults of a node by `rankmend inject`, in namespaces of their own: in force, then all as before, also after a kill -9."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.eventually import DEADLINE_S, eventually
from tests.support.hosts import Fleet, why_not

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "rankmend.cli", "inject")
PEER = "10.77.9.2"

pytestmark = pytest.mark.site


@dataclass
class Node:
    """A network and a mount namespace with one interface, one disk and the mark for drills."""

    folder: Path
    pid: int
    digest: str = ""
    waiting: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def inside(self) -> tuple[str, ...]:
        return ("nsenter", "-t", str(self.pid), "-m", "-n", "--")

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.inside, *argv], capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )

    def digest_of_file(self) -> str:
        return self.run("sha256sum", f"{self.disk}/file").stdout.split()[0]

    def picture(self) -> list[str]:
        """Return a line for each link, address, route, rule, queue, mount and file."""
        commands = {
            "link": "ip -o link show",
            "addresses": "ip -j -o addr show dev eth0 scope global",
            "routes": "ip -4 route show table all",
            "routes6": "ip -6 route show table all",
            "rules": "nft list ruleset",
            "queues": "tc qdisc show",
            "mounts": "cat /proc/self/mountinfo",
            "files": f"find {self.disk} -printf %p:%m:%u:%s\\n",
            "content": f"sha256sum {self.disk}/file",
        }
        return sorted(
            f"{name}: {line}"
            for name, command in commands.items()
            for line in self.run(*command.split()).stdout.splitlines()
        )

    def wait_until_as(self, before: list[str]) -> None:
        """Wait until all is as it was; the kernel itself says some time later that a link is up."""
        eventually(
            lambda: self.picture() == before,
            lambda: f"all is as before: {set(self.picture()) ^ set(before)}",
            pause_s=0.1,
        )

    def start(self, fault: str, *options: str, for_s: str = "300s") -> "Injecting":
        undo = self.folder / "undo"
        arguments = [fault, "--yes", "--json", "--for", for_s, *options]
        places = [f"--marks={self.folder}/marks/drills.toml", f"--undo-dir={undo}"]
        state = f"--state-dir={self.folder}/state"
        said = self.folder / f"said-{time.monotonic_ns()}"
        with said.open("wb") as file:
            process = subprocess.Popen(
                [*self.inside, *COMMAND, *arguments, *places, state],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,
            )
        return Injecting(process, said, undo)

    def undo(self) -> dict[str, object]:
        done = self.run(*COMMAND, "--undo", "--json", f"--undo-dir={self.folder}/undo")
        found: dict[str, object] = json.loads(done.stdout)
        return found


@dataclass
class Injecting:
    process: subprocess.Popen[bytes]
    said: Path
    folder: Path

    def wait_until_in_force(self) -> None:
        def look() -> bool:
            text = self.said.read_text()
            assert self.process.poll() is None or "in force" in text, text
            return "in force" in text

        eventually(look, "the fault is in force")

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def wait_until_forgotten(self) -> None:
        """Wait until nothing is left to undo: the supervisor has done it."""
        eventually(lambda: not list(self.folder.glob("*.json")), "all is undone")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    missing = [name for name in ("nft", "ip", "tc", "nsenter") if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"needs root and nft, ip, tc, nsenter (missing: {missing})")
    folder = tmp_path_factory.mktemp("node")
    (folder / "disk").mkdir()
    (folder / "marks").mkdir(mode=0o755)
    marks = folder / "marks" / "drills.toml"
    marks.write_text(
        f'[drills]\nallow = ["network", "storage", "cpu"]\ninterfaces = ["eth0"]\npaths = ["{folder / "disk"}"]\n'
    )
    host = subprocess.Popen(
        ["unshare", "-m", "-n", "--propagation", "private", "sleep", "infinity"],
        start_new_session=True,
    )
    try:
        made = Node(folder, host.pid)
        own = Path("/proc/self/ns/net").stat().st_ino
        eventually(
            lambda: Path(f"/proc/{host.pid}/ns/net").stat().st_ino != own and made.run("true"),
            "the namespaces",
        )
        for line in (
            f"mount -t tmpfs -o size=1m tmpfs {made.disk}",
            "ip link set lo up",
            "ip link add eth0 type veth peer name peer0",
            "sysctl -qw net.ipv6.conf.eth0.addr_gen_mode=1 net.ipv6.conf.peer0.addr_gen_mode=1",
            "ip addr add 10.77.9.1/24 dev eth0",
            "ip addr add fd77::1/64 dev eth0 nodad",
            "ip link set eth0 up",
            "ip link set peer0 up",
            f"ip route add 10.99.0.0/16 via {PEER}",
            "ip -6 route add fd99::/32 via fd77::2",
            f"ip neigh add {PEER} lladdr 02:00:00:00:00:02 dev eth0",
        ):
            done = made.run(*line.split())
            assert done.returncode == 0, (line, done.stderr)
        made.run("sh", "-c", f"head -c 4096 /dev/urandom > {made.disk}/file")
        made.digest = made.digest_of_file()
        yield made
    finally:
        host.kill()
        host.wait()


def has_table(family: str) -> Callable[[Node], bool]:
    return lambda node: (
        f"table {family} rankmend_inject_" in node.run("nft", "list", "tables").stdout
    )


def is_down(node: Node) -> bool:
    return "state DOWN" in node.run("ip", "-o", "link", "show", "dev", "eth0").stdout


def fails_to_write(text: str) -> Callable[[Node], bool]:
    def look(node: Node) -> bool:
        done = node.run("cp", f"{node.disk}/file", f"{node.disk}/new")
        node.run("rm", "-f", f"{node.disk}/new")
        return text in done.stderr

    return look


def fails_to_read(node: Node) -> bool:
    return "Input/output error" in node.run("cat", f"{node.disk}/file").stderr


def hangs(node: Node) -> bool:
    """Return whether a reader waits inside the kernel for the disk's answer; it ends with the fault."""
    argv = [*node.inside, "cat", f"{node.disk}/file"]
    reader = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    node.waiting.append(reader)
    state = Path(f"/proc/{reader.pid}/stat")
    waits = ("(cat) S", "(cat) D", "(cat) Z")
    eventually(lambda: any(one in state.read_text() for one in waits), "the reader waits")
    return reader.poll() is None


def is_damaged(node: Node) -> bool:
    return node.digest_of_file() != node.digest


NEEDS_FUSE = pytest.mark.skipif(
    shutil.which("fusermount3") is None
    or not os.access("/dev/fuse", os.R_OK | os.W_OK)
    or find_spec("mfusepy") is None,
    reason="FUSE is not usable here (fuse3, /dev/fuse, mfusepy)",
)
CARD, DISK = "--on=interface:eth0", "--on=path:{disk}"
FAULTS = [
    pytest.param(("link-down", CARD), is_down, id="link-down"),
    pytest.param(("loss", CARD, "--share=0.5"), has_table("inet"), id="loss"),
    pytest.param(("bandwidth", CARD, "--rate=1M"), has_table("inet"), id="bandwidth"),
    pytest.param(("partition", CARD, f"--peer={PEER}", "--peer=fd77::2"), has_table("inet"), id="partition"),
    pytest.param(("delay", CARD, "--delay=0.1"), lambda node: True, id="delay"),
    pytest.param(("read-only", DISK), fails_to_write("Read-only file system"), id="read-only"),
    pytest.param(("disk-full", DISK), fails_to_write("No space left"), id="disk-full"),
    pytest.param(("io-error", DISK), fails_to_read, id="io-error", marks=NEEDS_FUSE),
    pytest.param(("io-hang", DISK), hangs, id="io-hang", marks=NEEDS_FUSE),
    pytest.param(("torn-checkpoint", DISK), is_damaged, id="torn-checkpoint"),
    pytest.param(("bit-flip", DISK), is_damaged, id="bit-flip"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "is_in_force"), FAULTS)
def test_fault_of_a_node_is_in_force_and_leaves_nothing_even_after_a_kill_9(
    node: Node, words: tuple[str, ...], is_in_force: Callable[[Node], bool]
) -> None:
    before = node.picture()
    words = tuple(word.format(disk=node.disk) for word in words)

    for number in (signal.SIGKILL, signal.SIGTERM):
        injecting = node.start(*words)
        injecting.wait_until_in_force()
        assert is_in_force(node)
        code = injecting.end(number)
        injecting.wait_until_forgotten()
        for reader in node.waiting:
            reader.wait(DEADLINE_S)

        assert code == (-signal.SIGKILL if number == signal.SIGKILL else 0), (
            injecting.said.read_text()
        )
        node.wait_until_as(before)


def test_fault_ends_by_its_own_clock(node: Node) -> None:
    before = node.picture()

    injecting = node.start("loss", CARD, "--share=0.5", for_s="0.2s")
    code = injecting.process.wait(DEADLINE_S)

    assert code == 0
    assert injecting.process.stdout is not None
    assert json.loads(injecting.process.stdout.read())["ended_by"] == "time"
    node.wait_until_as(before)


def test_undo_cleans_up_once_injector_and_supervisor_have_both_been_killed(node: Node) -> None:
    before = node.picture()
    injecting = node.start("link-down", CARD)
    injecting.wait_until_in_force()

    both = (injecting.process.pid, *_supervisors_of(injecting.process.pid))
    for number in (signal.SIGSTOP, signal.SIGKILL):  # else the last one undoes the fault
        for pid in both:
            os.kill(pid, number)
    injecting.process.wait(DEADLINE_S)
    assert is_down(node)
    done = node.undo()

    assert [one["fault"] for one in done["undone"]] == ["link-down"]  # type: ignore[attr-defined]
    node.wait_until_as(before)


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
def test_delayed_interface_still_carries_what_is_sent(tmp_path: Path) -> None:
    with Fleet(2, tmp_path, planes=("delayed", "other")) as fleet:
        near, far = fleet
        marks = far.state / "drills.toml"
        marks.write_text('[drills]\nallow = ["network"]\ninterfaces = ["eth0"]\n')
        argv = [
            sys.executable,
            "-m",
            "rankmend.cli",
            "inject",
            "delay",
            "--on=interface:eth0",
            "--yes",
        ]
        argv += ["--delay=1", "--for=300s", f"--marks={marks}", f"--undo-dir={far.state}/undo"]
        with far.popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as injector:
            assert injector.stderr is not None
            assert "in force" in injector.stderr.readline()
            with near.network():
                receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            with far.network():
                sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            with receiver, sender:
                receiver.settimeout(DEADLINE_S)
                receiver.bind(("", 0))
                port = receiver.getsockname()[1]
                for words, address in zip((b"first", b"second"), near.addresses, strict=True):
                    sender.sendto(words, (address.ip, port))
                arrived = [receiver.recv(64) for _ in range(2)]
            injector.terminate()

    assert arrived == [b"second", b"first"], "the other plane is not delayed"


def _supervisors_of(parent: int) -> list[int]:
    done = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True, check=False)
    return [int(pid) for pid in done.stdout.split()]


def test_a_path_outside_the_marked_ones_is_refused_and_nothing_is_made(node: Node) -> None:
    before = node.picture()

    injecting = node.start("read-only", f"--on=path:{node.folder / 'marks'}")
    code = injecting.process.wait(DEADLINE_S)

    assert code == 2
    assert "is not below one of this node's paths for drills" in injecting.said.read_text()
    node.wait_until_as(before)

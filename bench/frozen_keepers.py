"""Shows whether two attempts run at once where a node's launcher and guardian stand still together and its ranks don't.

    python bench/frozen_keepers.py [--rounds 20] [--forms stop,frozen,groups,node] [--output FILE.json]

A controller over TLS and three launchers on this machine's loopback, two with two ranks each, one spare; a lease of 5 s, a kill
bound of 3 s, a margin of 2 s. In each round launcher and guardian of one node stand still in one of the forms, and a rank of
the other node is killed. The next attempt then begins by the lease; 3 s later the node goes on.
What counts: steps that ranks of an older attempt began, and saves that they published, after the next attempt had begun its first step.

With ``--suspend-s 3600`` the same job trains with the shipped lease instead, while launchers (each second time with their guardians) stand
still for up to two thirds of it and go on: no rank may end. Beside it, ``stress-ng --cpu 4 --vm 2 --io 2`` makes the machine busy.

stop: SIGSTOP to launcher and guardian; frozen: both in a frozen cgroup (root, cgroup 1 or 2); groups: SIGSTOP to their process
groups; node: SIGSTOP to everything of the node, ranks included.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil

JOB = Path(__file__).resolve().parent / "jobs" / "alone.py"
RANKMEND = (sys.executable, "-m", "rankmend.cli")
NODES = ("n1", "n2", "n3")
POLL_S = 0.05
WAIT_S_MAX = 240.0
AFTER_S = 3.0
SHORT_LEASE = """lease_s = 5
kill_bound_s = 3
lease_margin_s = 2
node_silent_s = 3
"""
LEASE_S = 15.0  # as shipped
POLICY = """
[policy]
join_wait_s = 60
evidence_wait_s = 0.5
node_failures_max = 1000
restarts_max = 1000
retry_pause_max_s = 2
{lease}
[quarantine]
blames = 1000
"""
T = TypeVar("T")
ENDS_ITSELF = "this rank ends itself"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--forms", default="stop,frozen,groups,node")
    parser.add_argument("--suspend-s", type=float, default=0.0, help="suspend healthy launchers")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.suspend_s:
        sys.exit(suspend(options.suspend_s))
    forms = options.forms.split(",")
    rounds = []
    with tempfile.TemporaryDirectory(prefix="rankmend-bench-", ignore_cleanup_errors=True) as name:
        bench = Bench(Path(name), SHORT_LEASE)
        try:
            bench.start()
            for number in range(options.rounds):
                rounds.append(bench.round(forms[number % len(forms)]))
                print(f"round {number + 1}: {rounds[-1]}", file=sys.stderr, flush=True)
        except TimeoutError:
            for path in sorted(Path(name).glob("*.log")):
                print(f"== {path.name}\n{path.read_text()[-3000:]}", file=sys.stderr)
            raise
        finally:
            bench.close()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for form in forms:
        own = [one for one in rounds if one["form"] == form]
        clean = sum(not one["begun"] and not one["published"] for one in own)
        print(
            f"{form:7} {clean} of {len(own)} rounds without a step or a save beside the next attempt; "
            f"ranks that ended themselves: {sum(one['ended_themselves'] for one in own)}"
        )
    if options.output:
        options.output.write_text(json.dumps(rounds, indent=1) + "\n")


def suspend(seconds: float) -> int:
    """Have launchers stand still and go on for so long, and return 1 if an attempt ended."""
    draw = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="rankmend-bench-", ignore_cleanup_errors=True) as name:
        bench = Bench(Path(name), "")
        count = 0
        try:
            bench.start()
            until_s = time.monotonic() + seconds
            while time.monotonic() < until_s:
                count += 1
                bench.suspend_one(draw, with_guardian=count % 2 == 0)
            attempts, ended = bench.attempt(), bench.ended_themselves()
        finally:
            bench.close()
    print(
        f"{count} suspensions in {seconds:g} s: attempt {attempts}, {ended} ranks ended themselves"
    )
    return int(attempts > 1 or ended > 0)


class Bench:
    def __init__(self, folder: Path, lease: str) -> None:
        self._folder = folder
        self._lease = lease
        self._notes = folder / "notes"
        self._started: list[subprocess.Popen[bytes]] = []
        self._launchers: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        self._notes.mkdir()
        url = self._start_controller()
        conf = self._folder / "conf"
        for node in NODES:
            self._launchers[node] = self._start(
                node,
                *(*RANKMEND, "run", "--nnodes=3", "--spares=1", "--nproc-per-node=2"),
                *(f"--controller={url}", f"--token-file={conf}/launch.token"),
                *(f"--ca-file={conf}/ca.crt", "--job=bench", f"--node-name={node}"),
                *(
                    f"--state-dir={self._folder}/state-{node}",
                    f"--agent-socket={self._folder}/none",
                ),
                *(f"--checkpoint-dir={self._folder}/checkpoints", "--max-restarts=1000"),
                *(str(JOB), f"--folder={self._notes}"),
            )
        _wait(lambda: len(self._running()) == 4, "four ranks step")

    def round(self, form: str) -> dict[str, object]:
        """Have one node's keepers stand still, and return what its ranks did beside the next attempt."""
        attempt = self.attempt()
        ranks = _wait(lambda: self._ranks_of(attempt), "two nodes with ranks")
        victim, other = sorted(ranks)
        told = self.ended_themselves()
        began_s = time.time()
        with _standing_still(form, self._launchers[victim].pid, ranks[victim]):
            os.kill(ranks[other][0], signal.SIGKILL)
            _wait(lambda: len(self._running(attempt + 1)) == 4, f"attempt {attempt + 1} steps")
            time.sleep(AFTER_S)
        _wait(lambda: not any(map(psutil.pid_exists, ranks[victim])), "the old ranks are gone")
        _wait(lambda: self._is_spare(victim), f"{victim} is heard again")
        first_s, beside = self._beside(attempt + 1)
        return {
            "form": form,
            "attempt": attempt + 1,
            "waited_s": round(first_s - began_s, 2),
            "begun": beside["begins"],
            "published": beside["publishes"],
            "ended_themselves": self.ended_themselves() - told,
        }

    def suspend_one(self, draw: random.Random, *, with_guardian: bool) -> None:
        """Have a node with ranks stand still, but for its ranks, for up to two thirds of the lease."""
        ranks = _wait(lambda: self._ranks_of(self.attempt()), "two nodes with ranks")
        victim = draw.choice(sorted(ranks))
        launcher = self._launchers[victim].pid
        guardian = psutil.Process(ranks[victim][0]).ppid()
        stopped = [launcher, guardian] if with_guardian else [launcher]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(draw.uniform(0.5, LEASE_S * 2 / 3))
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        time.sleep(draw.uniform(1.0, 3.0))

    def close(self) -> None:
        for process in self._started:
            for one in _tree(process.pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        for process in self._started:
            process.wait()

    def _beside(self, attempt: int) -> tuple[float, Counter[str]]:
        """Return when the attempt began its first step, and what older ones did after that."""
        lines = [
            line.split()
            for path in self._notes.glob("notes-*")
            for line in path.read_text().splitlines()
        ]
        first_s = min(float(at) for own, _what, at in lines if int(own) == attempt)
        late = [what for own, what, at in lines if int(own) < attempt and float(at) > first_s]
        return first_s, Counter(late)

    def attempt(self) -> int:
        return max(int(path.name.split("-")[1]) for path in self._notes.glob("notes-*"))

    def _running(self, attempt: int | None = None) -> list[int]:
        """Return the living processes that have noted steps of this attempt, or of the newest."""
        wanted = self.attempt() if attempt is None and any(self._notes.iterdir()) else attempt
        found = [path.name.split("-") for path in self._notes.glob("notes-*")]
        pids = [int(pid) for _notes, own, _rank, pid in found if int(own) == wanted]
        return [pid for pid in pids if psutil.pid_exists(pid)]

    def _ranks_of(self, attempt: int) -> dict[str, list[int]] | None:
        running = set(self._running(attempt))
        found = {
            node: sorted({one.pid for one in _tree(process.pid)} & running)
            for node, process in self._launchers.items()
        }
        found = {node: pids for node, pids in found.items() if pids}
        return found if [len(pids) for pids in found.values()] == [2, 2] else None

    def _is_spare(self, node: str) -> bool:
        conf = self._folder / "conf"
        argv = [
            *(*RANKMEND, "status", "bench", "--json", f"--controller={self._url}"),
            *(f"--token-file={conf}/admin.token", f"--ca-file={conf}/ca.crt"),
        ]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            return False
        nodes = json.loads(done.stdout)["nodes"]
        ages = [one["heard_age_s"] for one in nodes if one["node"] == node]
        return any(age is not None and age < 2.0 for age in ages)

    def ended_themselves(self) -> int:
        logs = [self._folder / f"{node}.log" for node in NODES]
        return sum(len(re.findall(ENDS_ITSELF, path.read_text(errors="replace"))) for path in logs)

    def _start_controller(self) -> str:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        conf = self._folder / "conf"
        subprocess.run(
            [*RANKMEND, "controller", "init", str(conf), "--host=localhost"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        config = conf / "controller.toml"
        (conf / "policy.toml").write_text(POLICY.format(lease=self._lease))
        text = config.read_text().replace('listen = ":9477"', f'listen = "127.0.0.1:{port}"')
        off = '#policy_file = "/etc/rankmend/controller/policy.toml"'
        text = text.replace(off, f'policy_file = "{conf}/policy.toml"')
        config.write_text(
            text.replace('"/var/lib/rankmend-controller"', f'"{self._folder}/controller"')
        )
        self._start("controller", *RANKMEND, "controller", "run", f"--config={config}")
        self._url = f"https://localhost:{port}"
        return self._url

    def _start(self, name: str, *argv: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process


@contextlib.contextmanager
def _standing_still(form: str, launcher: int, ranks: list[int]) -> Iterator[None]:
    guardian = psutil.Process(ranks[0]).ppid()
    assert psutil.Process(guardian).ppid() == launcher, "ranks are children of the guardian"
    if form == "frozen":
        with _frozen([launcher, guardian]):
            yield
        return
    send = os.killpg if form == "groups" else os.kill
    stopped = [launcher, guardian]
    if form == "node":
        stopped = [one.pid for one in _tree(launcher)]
    for pid in stopped:
        send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                send(pid, signal.SIGCONT)


@contextlib.contextmanager
def _frozen(pids: list[int]) -> Iterator[None]:
    """Put processes into a frozen cgroup, of version 1 or 2."""
    for mount, kind in _cgroup_mounts():
        ice = mount / f"rankmend-bench-{os.getpid()}"
        file, on, off = (
            ("cgroup.freeze", "1", "0")
            if kind == "cgroup2"
            else ("freezer.state", "FROZEN", "THAWED")
        )
        with contextlib.suppress(OSError):
            ice.mkdir()
        if not (ice / file).exists():
            continue
        for pid in pids:
            (ice / "cgroup.procs").write_text(str(pid))
        (ice / file).write_text(on)
        try:
            yield
        finally:
            (ice / file).write_text(off)
            for pid in pids:
                with contextlib.suppress(OSError):
                    (mount / "cgroup.procs").write_text(str(pid))
            with contextlib.suppress(OSError):
                ice.rmdir()
        return
    raise SystemExit("no cgroup can be frozen here: leave 'frozen' out of --forms")


def _cgroup_mounts() -> Iterator[tuple[Path, str]]:
    for line in Path("/proc/mounts").read_text().splitlines():
        _source, folder, kind, options, *_rest = line.split()
        if kind == "cgroup2" or (kind == "cgroup" and "freezer" in options.split(",")):
            yield Path(folder), kind


def _tree(pid: int) -> list[psutil.Process]:
    """Return the process and all that it has started, as far as they are there."""
    try:
        process = psutil.Process(pid)
        return [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return []


def _wait(look: Callable[[], T], what: str) -> T:
    until_s = time.monotonic() + WAIT_S_MAX
    while not (found := look()):
        if time.monotonic() > until_s:
            raise TimeoutError(f"never within {WAIT_S_MAX:g} s: {what}")
        time.sleep(POLL_S)
    return found


if __name__ == "__main__":
    main()

"""Measures the seconds from `kill -9` of a rank to the next step, beside torchrun.

    python bench/restart.py [--rounds 10] [--kills 1] [--peers rankmend,torchrun] [--output FILE.json]

One job (bench/jobs/ddp.py) under each launcher in turn, round after round, so that all of them
meet the same neighbours on the machine. In round n, rank n modulo the world is killed. A new
step is one that a process started after the kill has logged. With --kills above 1 each further kill
follows AGAIN_S after the recovery from the one before. For rankmend the phases of its own account
(docs/operate/mttr.md) are shown, too, with detection counted from the kill.

With --large-gb one checkpoint of that size is saved, and a rank is killed AFTER_SAVE_S after it, before rankmend can have
read it beside training. Compare `rankmend`, which looks for no checkpoint, with `rankmend-checks` and `rankmend-hurried`:

    python bench/restart.py --ranks 2 --rounds 5 --large-gb 4 --peers rankmend,rankmend-checks,rankmend-hurried

bench/recovery runs the same trials with more launchers, sizes of the job and kills.
"""

import argparse
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.restart_table import Trial, print_accounts, print_table, summarize

JOB = Path(__file__).resolve().parent / "jobs" / "ddp.py"
BIN = Path(sys.executable).parent
POLL_S = 0.02
START_S_MAX = 120.0
RECOVER_S_MAX = 60.0  # torchrun's own limit of 3 restarts is used up within 40 s here
STOP_S_MAX = 10.0
ASK_S_MAX = 60.0
KILL_AT_STEP = 25  # between two checkpoints, which lie 10 steps apart
SETTLE_IMPORTS = 2.0  # from the first step to the first kill, in times of the script's imports
RESTARTS_MAX = 3
RAN_BEFORE_S_MAX = 60.0  # for an earlier run to keep what its ranks imported
STEADY_S_MIN = 5.0  # from the last recovery to the measurement of memory
AGAIN_S = 1.0  # from a recovery to the next kill
AFTER_SAVE_S = 3.0  # from the end of a large save to the kill
LARGE_S_MAX = 300.0  # to save or to load a large checkpoint on a slow disk
HURRIED = "--checkpoint-check-wait=0.5"
# In the environment of all that a trial starts. rankmend takes unknown RANKMEND_* from its ranks.
MARK = "BENCH_TRIAL_FOLDER"
OUTPUT_CHARACTERS_MAX = 3000  # of a launcher that failed
DEFAULT = ()
COLD = ("--no-fork-server",)
NO_SHARED_STORE = (("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),)


class NeverTrainedError(Exception):
    """The job did not come to KILL_AT_STEP; says what its launcher printed last."""


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    command: tuple[str, ...]  # without the script
    environment: tuple[tuple[str, str], ...] = ()
    job: Path = JOB
    # The job has run once in the same state folder before the run that is measured.
    ran_before: bool = False
    # The other ranks live on and train without the killed one until it is back. They log such steps as `reduced`.
    keeps_survivors: bool = False
    finds_checkpoints: bool = (
        False  # by --checkpoint-dir; the script loads the newest one by itself
    )


def known_peers(ranks: int, restarts_max: int = RESTARTS_MAX) -> dict[str, Peer]:
    common = ("--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts_max}")
    rankmend = (str(BIN / "rankmend"), "run", *common, "--job=bench")
    torchrun = (sys.executable, "-m", "torch.distributed.run", *common)
    peers = [
        Peer("rankmend", (*rankmend, *DEFAULT)),
        Peer("rankmend-known", (*rankmend, *DEFAULT), ran_before=True),
        Peer("rankmend-cold", (*rankmend, *COLD)),
        Peer("rankmend-standby", (*rankmend, *COLD, "--standby=torch,torch._dynamo")),
        Peer("rankmend-fork", (*rankmend, "--fork-server")),
        Peer("rankmend-checks", rankmend, finds_checkpoints=True),
        Peer("rankmend-hurried", (*rankmend, HURRIED), finds_checkpoints=True),
        Peer("torchrun", torchrun, NO_SHARED_STORE),
        Peer("torchrun-default", torchrun),
    ]
    return {peer.name: peer for peer in peers}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done to a job. ``settle_s`` None: SETTLE_IMPORTS times the script's own imports."""

    ranks: int
    kills: int
    settle_s: float | None  # from the first step of all ranks to the first kill
    start_s_max: float = START_S_MAX
    recover_s_max: float = RECOVER_S_MAX
    measures_memory: bool = False  # takes the time of the settling once more
    large_bytes: int = 0  # of the one checkpoint; `settle_s` then counts from its save


@dataclass(frozen=True, slots=True)
class Event:
    pid: int
    rank: int
    name: str
    at_ns: int
    step: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of a job. No memory: it was not asked for, or the job did not recover from the last kill."""

    trials: list[Trial]
    settle_s: float
    pss_bytes: int | None = (
        None  # in steady training, of all that the launcher has started, and its own
    )
    processes: int | None = None


class EventLog:
    """What the ranks of a run have logged. Reads each line once, so that looking often costs little."""

    def __init__(self, folder: Path) -> None:
        self.events: list[Event] = []
        self._folder = folder
        self._read_bytes: dict[Path, int] = {}

    def read(self) -> None:
        """Take in what is new; a line still being written is left for later."""
        for path in self._folder.iterdir():
            with path.open("rb") as file:
                file.seek(self._read_bytes.get(path, 0))
                lines, newline, _torn = file.read().rpartition(b"\n")
            self._read_bytes[path] = self._read_bytes.get(path, 0) + len(lines) + len(newline)
            _word, rank, pid = path.name.split("-")
            for line in lines.splitlines():
                name, at_ns, step = line.decode("ascii").split()
                self.events.append(Event(int(pid), int(rank), name, int(at_ns), int(step)))


@dataclass(frozen=True, slots=True)
class Run:
    peer: Peer
    folder: Path
    launcher: "subprocess.Popen[bytes]"
    log: EventLog

    def wait(self, is_so: Callable[[list[Event]], bool], limit_s: float) -> bool:
        """Wait until it is so of the events that were read since the call; False: it never was."""
        known = len(self.log.events)
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s:
            self.log.read()
            if is_so(self.log.events[known:]):
                return True
            if self.launcher.poll() is not None:
                return False
            time.sleep(POLL_S)
        return False

    def train(self, plan: Plan) -> None:
        """Wait until each rank has come to KILL_AT_STEP."""

        def reached(events: list[Event]) -> bool:
            last = {event.rank: event.step for event in events if event.name == "step"}
            return len(last) == plan.ranks and min(last.values()) >= KILL_AT_STEP

        if not self.wait(reached, plan.start_s_max):
            output = (self.folder / "output").read_text(errors="replace")
            told = output[-OUTPUT_CHARACTERS_MAX:].strip() or "it printed nothing"
            raise NeverTrainedError(f"{self.peer.name} never came to step {KILL_AT_STEP}:\n{told}")


def run_trials(peer: Peer, plan: Plan, killed_rank: int) -> Outcome:
    """Start the job; kill one rank and wait until every rank has made a new step, as often as planned.

    Raises:
        NeverTrainedError: there was nothing to kill.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"rankmend-bench-{peer.name}-"))
    try:
        if peer.ran_before:
            with running(peer, folder) as run:
                run.train(plan)
                wait_for_kept_imports(folder / "state")
        with running(peer, folder, plan.large_bytes) as run:
            run.train(plan)
            settle_s = settle_time_s(run.log.events) if plan.settle_s is None else plan.settle_s
            if plan.large_bytes:
                from_ns = [event.at_ns for event in run.log.events if event.name == "saved"]
            else:
                from_ns = [event.at_ns for event in run.log.events if event.step == 1]
            time.sleep(max(0.0, max(from_ns) / 1e9 + settle_s - time.monotonic()))
            trials = _kill_and_watch(run, plan, killed_rank)
            if peer.name.startswith("rankmend"):
                trials = with_accounts(trials, read_incidents(folder / "state"))
            if not (plan.measures_memory and trials[-1].is_recovered):
                return Outcome(trials, settle_s)
            time.sleep(max(settle_s, STEADY_S_MIN))
            return Outcome(trials, settle_s, *measure_memory(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait_for_kept_imports(state: Path) -> None:
    """Wait until a run has written what the next one starts with; it goes on without after a time."""
    deadline_s = time.monotonic() + RAN_BEFORE_S_MAX
    while not any(state.glob("imports/*.json")) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)


@contextmanager
def running(peer: Peer, folder: Path, large_bytes: int = 0) -> Iterator[Run]:
    """Start the job from its beginning; end all that is left of it."""
    for name in ("log", "checkpoints"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
    command = list(peer.command)
    if peer.name.startswith("rankmend"):
        command.append(f"--state-dir={folder / 'state'}")
    if peer.finds_checkpoints:
        command.append(f"--checkpoint-dir={folder / 'checkpoints'}")
    environment = {
        **os.environ,
        **dict(peer.environment),
        MARK: str(folder),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    if large_bytes:
        environment |= {
            "BENCH_FILLER_BYTES": str(large_bytes),
            "BENCH_ONLY_SAVE_AT": str(KILL_AT_STEP - 1),
        }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else every start compiles PyTorch
    launcher = None
    try:
        with (folder / "output").open("wb") as output:
            launcher = subprocess.Popen(
                [*command, str(peer.job), f"--folder={folder}"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        yield Run(peer, folder, launcher, EventLog(folder / "log"))
    finally:
        _stop(launcher, folder)


def settle_time_s(events: Sequence[Event]) -> float:
    """Return SETTLE_IMPORTS times what the slowest rank's imports took."""
    began_ns = {event.pid: event.at_ns for event in events if event.name == "started"}
    imported = [event for event in events if event.name == "imported"]
    return SETTLE_IMPORTS * max(event.at_ns - began_ns[event.pid] for event in imported) / 1e9


def measure_memory(folder: Path) -> tuple[int, int]:
    """Return the PSS in bytes of all processes that a trial has started, and their number.

    A page that several processes share counts once, and less if others on the machine share it, too.
    """
    kib = count = 0
    for pid in started_pids(folder):
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        except OSError:
            continue  # gone meanwhile
        kib += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
        count += 1
    return kib * 1024, count


def started_pids(folder: Path) -> list[int]:
    """Return everything that a trial has started: its environment names the trial's folder."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue  # gone, or another user's
    return found


def read_incidents(state: Path) -> list[dict[str, Any]]:
    """Return what `rankmend incidents --json` says; raise if it fails."""
    command = [str(BIN / "rankmend"), "incidents", f"--state-dir={state}", "--json"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=ASK_S_MAX)
    incidents: list[dict[str, Any]] = json.loads(done.stdout)["incidents"]
    return incidents


def with_accounts(trials: Sequence[Trial], incidents: Sequence[Mapping[str, Any]]) -> list[Trial]:
    """Give each kill the account of the incident that opened between it and the next kill.

    A phase that was not observed is left out. A kill followed by several incidents, or by one that
    has not ended, has no account.
    """
    ends = [trial.killed_unix_s for trial in trials[1:]] + [float("inf")]
    told = []
    for trial, end_s in zip(trials, ends, strict=True):
        mine = [one for one in incidents if trial.killed_unix_s <= one["opened_unix_s"] < end_s]
        if len(mine) == 1 and mine[0]["total_s"] is not None:
            phases = {k: v for k, v in mine[0]["phases"].items() if v is not None}
            phases["detect_s"] = mine[0]["opened_unix_s"] - trial.killed_unix_s
            trial = replace(trial, account=phases)  # noqa: PLW2901
        told.append(trial)
    return told


def _kill_and_watch(run: Run, plan: Plan, killed_rank: int) -> list[Trial]:
    trials: list[Trial] = []
    for number in range(1, plan.kills + 1):
        trial = harm_once(run, plan, (killed_rank + number - 1) % plan.ranks)
        trials.append(replace(trial, kill=number))
        if not trial.is_recovered:
            break
        time.sleep(AGAIN_S)
    return trials


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def keep_stopped(pid: int) -> None:
    """Stop a process, and again whenever it is told to go on, until it has gone: SIGCONT doesn't heal it."""
    pidfd = os.pidfd_open(pid)
    signal.pidfd_send_signal(pidfd, signal.SIGSTOP)

    def stop_again() -> None:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        while not poll.poll(20):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        os.close(pidfd)

    threading.Thread(target=stop_again, daemon=True).start()


def harm_once(run: Run, plan: Plan, killed_rank: int, harm: Callable[[int], None] = kill) -> Trial:
    """Do harm to a rank's process, and wait until every rank has made a new step."""
    run.log.read()
    before = {event.pid for event in run.log.events}
    highest = max(event.step for event in run.log.events)
    victim = next(event.pid for event in reversed(run.log.events) if event.rank == killed_rank)
    killed_ns, killed_unix_s = time.monotonic_ns(), time.time()
    harm(victim)
    read_before = len(run.log.events)
    keeps_survivors = run.peer.keeps_survivors

    def stepped(events: list[Event]) -> bool:
        steps = new_steps(events, before, keeps_survivors=keeps_survivors)
        return {event.rank for event in steps} == set(range(plan.ranks))

    if not run.wait(stepped, plan.recover_s_max):
        return Trial(run.peer.name, killed_rank, is_recovered=False, killed_unix_s=killed_unix_s)
    events = run.log.events[read_before:]
    steps = new_steps(events, before, keeps_survivors=keeps_survivors)
    firsts = {rank: min(e.at_ns for e in steps if e.rank == rank) for rank in range(plan.ranks)}
    progress = steps + [e for e in events if e.name == "reduced" and e.at_ns > killed_ns]
    first = min(progress, key=lambda event: event.at_ns)
    # steps that were under way at the kill and ended
    highest = max([highest, *(e.step for e in events if e.pid in before and e.at_ns < first.at_ns)])
    members = {event.pid for event in steps} - before  # without those of attempts that failed

    def slowest(name: str) -> float:
        times = [e.at_ns for e in events if e.pid in members and e.name == name]
        return (max(times) - killed_ns) / 1e9

    return Trial(
        peer=run.peer.name,
        killed_rank=killed_rank,
        is_recovered=True,
        first_step_s=(first.at_ns - killed_ns) / 1e9,
        all_ranks_s=(max(firsts.values()) - killed_ns) / 1e9,
        steps_recomputed=highest - min(event.step for event in progress) + 1,
        started_s=slowest("started"),
        imported_s=slowest("imported"),
        connected_s=slowest("connected"),
        restored_s=slowest("restored"),
        killed_unix_s=killed_unix_s,
    )


def new_steps(
    events: Sequence[Event], before: set[int], *, keeps_survivors: bool = False
) -> list[Event]:
    """Return the steps that all ranks made together after a kill.

    ``before`` has the processes that had logged anything by then. They make no new step, unless they survive:
    then all ranks take part in a step again once a new process has started.
    """
    if not keeps_survivors:
        return [event for event in events if event.name == "step" and event.pid not in before]
    starts = [e.at_ns for e in events if e.name == "started" and e.pid not in before]
    return [e for e in events if e.name == "step" and starts and e.at_ns > min(starts)]


def _stop(launcher: "subprocess.Popen[bytes] | None", folder: Path) -> None:
    """End the launcher, then whatever of this trial it has left; a second Ctrl-C doesn't stop that."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        if launcher is not None and launcher.poll() is None:
            launcher.terminate()
            try:
                launcher.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                launcher.kill()
                launcher.wait()
        deadline_s = time.monotonic() + STOP_S_MAX
        while (left := started_pids(folder)) and time.monotonic() < deadline_s:
            for pid in left:  # a killed one may have started another meanwhile
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S)
    finally:
        signal.signal(signal.SIGINT, interrupt)


def describe_machine() -> dict[str, object]:
    cpu = "unknown"
    for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "load_1_min": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds from kill -9 to the next step.")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument(
        "--kills",
        type=int,
        choices=range(1, RESTARTS_MAX + 1),
        default=1,
        help=f"kills in each run, {AGAIN_S:g} s after the recovery from the one before",
    )
    parser.add_argument(
        "--peers", default="rankmend,rankmend-cold,rankmend-standby,torchrun,torchrun-default"
    )
    parser.add_argument(
        "--settle-s",
        type=float,
        default=15.0,
        help="from the first step to the kill: standbys and the fork server import meanwhile",
    )
    parser.add_argument(
        "--large-gb",
        type=float,
        default=0.0,
        help="size of the one checkpoint, which is just saved",
    )
    parser.add_argument("--output", type=Path, default=Path("bench/results/restart.json"))
    arguments = parser.parse_args()
    known = known_peers(arguments.ranks)
    names = arguments.peers.split(",")
    if unknown := set(names) - set(known):
        parser.error(f"unknown peers {sorted(unknown)}; known are {sorted(known)}")
    plan = Plan(arguments.ranks, arguments.kills, arguments.settle_s)
    if arguments.large_gb:
        plan = Plan(
            *(arguments.ranks, 1, AFTER_SAVE_S),
            start_s_max=LARGE_S_MAX,
            recover_s_max=LARGE_S_MAX,
            large_bytes=int(arguments.large_gb * 1e9),
        )
    machine = describe_machine()
    trials = []
    for number in range(arguments.rounds):
        for name in names:
            rank = number % arguments.ranks
            try:
                told = run_trials(known[name], plan, rank).trials
            except NeverTrainedError as error:
                raise SystemExit(str(error)) from error
            trials += told
            shown = ", ".join(
                "never" if one.first_step_s is None else f"{one.first_step_s:.2f} s" for one in told
            )
            print(f"round {number + 1}/{arguments.rounds}  {name:<18}{shown}", flush=True)
    rows = summarize(names, trials)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "machine": machine,
        "ranks": arguments.ranks,
        "medians": rows,
        "trials": [asdict(item) for item in trials],
    }
    arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="ascii")
    print_table(machine, rows)
    print_accounts(rows)
    print(f"\nwritten to {arguments.output}")


if __name__ == "__main__":
    main()

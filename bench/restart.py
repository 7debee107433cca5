"""Measures the seconds from `kill -9` of a rank to the next step, beside torchrun.

    python bench/restart.py [--rounds 10] [--kills 1] [--peers rankmend,torchrun] [--output FILE.json]

One job (bench/jobs/ddp.py) under each launcher in turn, round after round, so that all of them
meet the same neighbours on the machine. In round n, rank n modulo the world is killed. A new
step is one that a process started after the kill has logged. With --kills above 1 each further kill
follows AGAIN_S after the recovery from the one before. For rankmend the phases of its own account
(docs/operate/mttr.md) are shown, too, with detection counted from the kill.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

JOB = Path(__file__).resolve().parent / "jobs" / "ddp.py"
BIN = Path(sys.executable).parent
POLL_S = 0.02
START_S_MAX = 120.0
RECOVER_S_MAX = 60.0  # torchrun's own limit of 3 restarts is used up within 40 s here
STOP_S_MAX = 10.0
ASK_S_MAX = 60.0
KILL_AT_STEP = 25  # between two checkpoints, which lie 10 steps apart
RESTARTS_MAX = 3
AGAIN_S = 1.0  # from a recovery to the next kill
MARK = "RANKMEND_BENCH_FOLDER"  # in the environment of all that a trial starts


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()


def known_peers(ranks: int) -> dict[str, Peer]:
    common = ("--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={RESTARTS_MAX}")
    rankmend = (str(BIN / "rankmend"), "run", *common)
    torchrun = (sys.executable, "-m", "torch.distributed.run", *common)
    peers = [
        Peer("rankmend", (*rankmend, "--job=bench")),
        Peer("rankmend-standby", (*rankmend, "--job=bench", "--standby=torch,torch._dynamo")),
        Peer("rankmend-fork", (*rankmend, "--job=bench", "--fork-server")),
        Peer("torchrun", torchrun, (("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),)),
        Peer("torchrun-default", torchrun),
    ]
    return {peer.name: peer for peer in peers}


@dataclass(frozen=True, slots=True)
class Event:
    pid: int
    rank: int
    name: str
    at_ns: int
    step: int


@dataclass(frozen=True, slots=True)
class Trial:
    """One kill. Times in seconds after it; None where the job did not come back."""

    peer: str
    killed_rank: int
    is_recovered: bool
    kill: int = 1  # 1: the first of its run
    first_step_s: float | None = None
    all_ranks_s: float | None = None
    steps_recomputed: int | None = None
    started_s: float | None = None  # the slowest new process's, like the following ones
    imported_s: float | None = None
    connected_s: float | None = None
    restored_s: float | None = None
    killed_unix_s: float = 0.0
    # rankmend's own account, in the order of its phases. Empty: another launcher, or no account.
    account: Mapping[str, float] = field(default_factory=dict)


def run_trials(
    peer: Peer, ranks: int, killed_rank: int, settle_s: float, kills: int
) -> list[Trial]:
    """Start the job; kill one rank and wait until every rank has made a new step, ``kills`` times."""
    folder = Path(tempfile.mkdtemp(prefix=f"rankmend-bench-{peer.name}-"))
    for name in ("log", "checkpoints"):
        (folder / name).mkdir()
    command = list(peer.command)
    if peer.name.startswith("rankmend"):
        command.append(f"--state-dir={folder / 'state'}")
    environment = {
        **os.environ,
        **dict(peer.environment),
        MARK: str(folder),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    with (folder / "output").open("wb") as output:
        launcher = subprocess.Popen(
            [*command, str(JOB), f"--folder={folder}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        trials = _kill_and_watch(peer, folder, launcher, ranks, killed_rank, settle_s, kills)
        if not peer.name.startswith("rankmend"):
            return trials
        return with_accounts(trials, _read_incidents(folder / "state"))
    finally:
        _stop(launcher, folder)
        shutil.rmtree(folder, ignore_errors=True)


def _read_incidents(state: Path) -> list[dict[str, Any]]:
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


def _kill_and_watch(
    peer: Peer,
    folder: Path,
    launcher: subprocess.Popen[bytes],
    ranks: int,
    killed_rank: int,
    settle_s: float,
    kills: int,
) -> list[Trial]:
    def reached(events: list[Event]) -> bool:
        last = {event.rank: event.step for event in events if event.name == "step"}
        return len(last) == ranks and min(last.values()) >= KILL_AT_STEP

    if not _wait(folder, launcher, reached, START_S_MAX):
        end = (folder / "output").read_text(errors="replace")[-3000:]
        raise SystemExit(f"{peer.name} never came to step {KILL_AT_STEP}:\n{end}")
    time.sleep(settle_s)
    trials: list[Trial] = []
    for number in range(1, kills + 1):
        trial = _kill_once(peer, folder, launcher, ranks, (killed_rank + number - 1) % ranks)
        trials.append(replace(trial, kill=number))
        if not trial.is_recovered:
            break
        time.sleep(AGAIN_S)
    return trials


def _kill_once(
    peer: Peer, folder: Path, launcher: subprocess.Popen[bytes], ranks: int, killed_rank: int
) -> Trial:
    before = {event.pid: event.rank for event in read_events(folder)}
    victim = next(pid for pid, rank in before.items() if rank == killed_rank and _is_running(pid))
    killed_ns, killed_unix_s = time.monotonic_ns(), time.time()
    os.kill(victim, signal.SIGKILL)

    def stepped(events: list[Event]) -> bool:
        return {event.rank for event in _new_steps(events, before)} == set(range(ranks))

    if not _wait(folder, launcher, stepped, RECOVER_S_MAX):
        return Trial(peer.name, killed_rank, is_recovered=False, killed_unix_s=killed_unix_s)
    events = read_events(folder)
    steps = _new_steps(events, before)
    firsts = {rank: min(e.at_ns for e in steps if e.rank == rank) for rank in range(ranks)}
    highest = max(event.step for event in events if event.pid in before)
    members = {event.pid for event in steps}  # without processes of attempts that failed

    def slowest(name: str) -> float:
        times = [e.at_ns for e in events if e.pid in members and e.name == name]
        return (max(times) - killed_ns) / 1e9

    return Trial(
        peer=peer.name,
        killed_rank=killed_rank,
        is_recovered=True,
        first_step_s=(min(firsts.values()) - killed_ns) / 1e9,
        all_ranks_s=(max(firsts.values()) - killed_ns) / 1e9,
        steps_recomputed=highest - min(event.step for event in steps) + 1,
        started_s=slowest("started"),
        imported_s=slowest("imported"),
        connected_s=slowest("connected"),
        restored_s=slowest("restored"),
        killed_unix_s=killed_unix_s,
    )


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _new_steps(events: list[Event], before: dict[int, int]) -> list[Event]:
    return [event for event in events if event.name == "step" and event.pid not in before]


def read_events(folder: Path) -> list[Event]:
    """Return everything the ranks have logged; a line still being written is left out."""
    events = []
    for path in (folder / "log").iterdir():
        _word, rank, pid = path.name.split("-")
        for line in path.read_text(encoding="ascii").splitlines(keepends=True):
            if line.endswith("\n"):
                name, at_ns, step = line.split()
                events.append(Event(int(pid), int(rank), name, int(at_ns), int(step)))
    return events


def _wait(
    folder: Path,
    launcher: subprocess.Popen[bytes],
    is_so: Callable[[list[Event]], bool],
    limit_s: float,
) -> bool:
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        if is_so(read_events(folder)):
            return True
        if launcher.poll() is not None:
            return False
        time.sleep(POLL_S)
    return False


def _stop(launcher: subprocess.Popen[bytes], folder: Path) -> None:
    """End the launcher, then whatever of this trial it has left."""
    if launcher.poll() is None:
        launcher.terminate()
        try:
            launcher.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.wait()
    mark = f"{MARK}={folder}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)
        except OSError:
            continue  # gone, or another user's


def describe_machine() -> dict[str, object]:
    cpu = "unknown"
    for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    import torch

    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_1_min": os.getloadavg()[0],
    }


PHASES = ("started_s", "imported_s", "connected_s", "restored_s")


def summarize(peers: list[str], trials: list[Trial]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name in peers:
        for kill in sorted({trial.kill for trial in trials if trial.peer == name}):
            mine = [trial for trial in trials if trial.peer == name and trial.kill == kill]
            rows.append(_row(name, kill, mine))
    return rows


def _row(name: str, kill: int, trials: list[Trial]) -> dict[str, object]:
    good = [trial for trial in trials if trial.is_recovered]
    row: dict[str, object] = {
        "peer": name,
        "kill": kill,
        "trials": len(trials),
        "recovered": len(good),
    }
    for key in ("first_step_s", "all_ranks_s", "steps_recomputed", *PHASES):
        values = [getattr(trial, key) for trial in good]
        row[key] = statistics.median(values) if values else None
    times = [trial.first_step_s for trial in good if trial.first_step_s is not None]
    row["first_step_s_range"] = [min(times), max(times)] if times else None
    names = dict.fromkeys(name for trial in good for name in trial.account)
    row["account"] = {
        name: statistics.median(one.account[name] for one in good if name in one.account)
        for name in names
    }
    return row


def print_table(machine: dict[str, object], rows: list[dict[str, object]]) -> None:
    print(
        f"\n{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']},"
        f" Python {machine['python']}, torch {machine['torch']}"
    )
    print("seconds from kill -9 of a rank to the next step, medians; phases of the slowest rank\n")
    phases = "".join(f"{phase.removesuffix('_s'):>11}" for phase in PHASES)
    print(
        f"{'launcher':<18}{'kill':>5}{'recovered':>10}{phases}{'first step':>12}"
        f"{'range':>16}{'all ranks':>11}"
    )
    for row in rows:
        ratio = f"{row['recovered']}/{row['trials']}"
        if row["first_step_s"] is None:
            print(f"{row['peer']:<18}{row['kill']:>5}{ratio:>10}{'never':>12}")
            continue
        low, high = row["first_step_s_range"]
        span = f"{low:.2f} to {high:.2f}"
        phases = "".join(f"{row[phase]:>11.2f}" for phase in PHASES)
        print(
            f"{row['peer']:<18}{row['kill']:>5}{ratio:>10}{phases}{row['first_step_s']:>12.2f}"
            f"{span:>16}{row['all_ranks_s']:>11.2f}"
        )


def print_accounts(rows: list[dict[str, Any]]) -> None:
    """Print the phases of rankmend's own account; they follow each other, unlike the times above."""
    names = [name for row in rows for name in row["account"]]
    names = [name for name in dict.fromkeys(names) if any(row["account"].get(name) for row in rows)]
    if not names:
        return
    print("\nseconds that each phase took by rankmend's own account, medians\n")
    heads = "".join(f"{name.removesuffix('_s').replace('_', ' '):>11}" for name in names)
    print(f"{'launcher':<18}{'kill':>5}{heads}")
    for row in rows:
        if row["account"]:
            times = (row["account"].get(name) for name in names)
            cells = "".join(f"{'-':>11}" if one is None else f"{one:>11.3f}" for one in times)
            print(f"{row['peer']:<18}{row['kill']:>5}{cells}")


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
        "--peers", default="rankmend,rankmend-standby,rankmend-fork,torchrun,torchrun-default"
    )
    parser.add_argument(
        "--settle-s",
        type=float,
        default=15.0,
        help=f"from step {KILL_AT_STEP} to the kill: standbys and the fork server import meanwhile",
    )
    parser.add_argument("--output", type=Path, default=Path("bench/results/restart.json"))
    arguments = parser.parse_args()
    known = known_peers(arguments.ranks)
    names = arguments.peers.split(",")
    if unknown := set(names) - set(known):
        parser.error(f"unknown peers {sorted(unknown)}; known are {sorted(known)}")
    machine = describe_machine()
    trials = []
    for number in range(arguments.rounds):
        for name in names:
            rank = number % arguments.ranks
            told = run_trials(
                known[name], arguments.ranks, rank, arguments.settle_s, arguments.kills
            )
            trials += told
            shown = ", ".join(
                "never" if one.first_step_s is None else f"{one.first_step_s:.2f} s" for one in told
            )
            print(f"round {number + 1}/{arguments.rounds}  {name:<18}{shown}", flush=True)
    rows = summarize(names, trials)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    report = {"machine": machine, "medians": rows, "trials": [asdict(item) for item in trials]}
    arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="ascii")
    print_table(machine, rows)
    print_accounts(rows)
    print(f"\nwritten to {arguments.output}")


if __name__ == "__main__":
    main()

"""A job of a few milliseconds a step whose ranks wait for each other, and which can misbehave.

Its state depends on every step of every rank, so that a step lost or done twice shows in the
result. Everything that goes wrong is chosen on the command line, by attempt where that matters.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "examples" / "digits"))
from ring import Ring

import rankmend

LAYOUTS = ("series", "side", "best-last", "pair", "per-rank")


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint-dir", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--keep", type=int, default=0, help="of the checkpoints; 0: all")
    parser.add_argument("--step-s", type=float, default=0.01)
    parser.add_argument("--fail-rank", type=int, default=-1)
    parser.add_argument("--fail-step", type=int, default=-1)
    parser.add_argument("--fail-attempts", type=int, default=1, help="how many attempts fail")
    parser.add_argument("--fail-with", default="exception")
    parser.add_argument("--fail-at-start", action="store_true")
    parser.add_argument("--fail-in-restore", action="store_true")
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--grandchild", type=Path, help="leave a daemon; its pid goes here")
    parser.add_argument("--forked", type=Path, help="the same by a fork without exec")
    parser.add_argument("--early-rank", type=int, default=-1, help="ends with 0 at once")
    parser.add_argument("--ballast-mb", type=int, default=0, help="memory that dies with a rank")
    parser.add_argument("--timeout-s", type=float, default=60.0)
    parser.add_argument("--until", type=Path, help="ends once this file is there")
    parser.add_argument("--let-go", type=Path, help="the last step waits for this file")
    parser.add_argument("--snapshot-every", type=int, default=0)
    parser.add_argument("--snapshot-mb", type=int, default=0, help="of state beside the job's own")
    parser.add_argument("--beside", action="store_true", help="a thread reads during each step")
    parser.add_argument("--apart", action="store_true", help="no rank's snapshot equals another's")
    parser.add_argument("--flip-rank", type=int, default=-1, help="its memory goes wrong ...")
    parser.add_argument("--flip-step", type=int, default=-1, help="... from this step on")
    parser.add_argument("--nan-rank", type=int, default=-1, help="its loss is NaN ...")
    parser.add_argument("--nan-step", type=int, default=-1, help="... at this step")
    parser.add_argument("--nan-attempts", type=int, default=1, help="in so many attempts")
    parser.add_argument("--slow-rank", type=int, default=-1, help="computes twice as long ...")
    parser.add_argument("--slow-step", type=int, default=-1, help="... from this step on")
    parser.add_argument("--spoil-step", type=int, default=-1, help="attempt 1 saves it so ...")
    parser.add_argument("--spoil", default="key", help="... that it can't be loaded: key, size")
    parser.add_argument("--service-fails", type=int, default=0, help="through this attempt, from 2")
    parser.add_argument("--fail-in-snapshot", action="store_true", help="as it is written")
    parser.add_argument("--filler-mb", type=int, default=0, help="of a checkpoint; nobody loads it")
    parser.add_argument(
        "--flip-saved-step", type=int, default=-1, help="a bit of its filler is flipped"
    )
    parser.add_argument("--layout", default="series", help="of the saves: " + ", ".join(LAYOUTS))
    parser.add_argument("--torn-step", type=int, default=-1, help="a rank dies in attempt 1's save")
    parser.add_argument("--resume", default="", help="the checkpoint, in the place of resume()")
    parser.add_argument("--published", type=Path, help="gets a line for each checkpoint")
    return parser.parse_args()


def fail(arguments: argparse.Namespace) -> None:
    how = arguments.fail_with
    if how == "exception":
        raise ValueError("the loss is not a number")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "stop":
        stop_for_good()
    if how.startswith("statvfs:"):
        os.statvfs(how.partition(":")[2])
        return
    sys.exit(int(how))


def stop_for_good() -> None:
    """Stop, and again whenever somebody lets this process go on."""
    signal.signal(signal.SIGCONT, lambda *_: os.kill(os.getpid(), signal.SIGSTOP))
    os.kill(os.getpid(), signal.SIGSTOP)


def load_checkpoint(path: str) -> tuple[int, np.ndarray]:
    state = np.ones(4, np.float32)
    with np.load(path, allow_pickle=False) as file:
        state[:] = file["state"]
        return int(file["step"]), state


def kill_soon() -> None:
    """Have this process killed in the middle of what it does next."""
    code = (
        "import os, signal, sys, time; time.sleep(0.002); os.kill(int(sys.argv[1]), signal.SIGKILL)"
    )
    child = subprocess.Popen([sys.executable, "-S", "-c", code, str(os.getpid())])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def leave_daemon(path: Path) -> None:
    """Start a process that leaves our session and outlives us."""
    code = "import os, time; os.setsid(); os.fork() and os._exit(0); open({!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    subprocess.run([sys.executable, "-c", code.format(str(path))], check=True)


def fork_daemon(path: Path) -> None:
    """Leave a process that was never executed anew, and so has the environment that we had."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            path.write_text(str(os.getpid()))
            time.sleep(600)
        os._exit(0)
    os.wait()


def meet(folder: Path, name: str, world_size: int, rank: int) -> None:
    """Wait for the other ranks, which a busy machine starts one after the other."""
    (folder / f"met-{name}-{rank}").touch()
    while sum(1 for _path in folder.glob(f"met-{name}-*")) < world_size:
        time.sleep(0.005)


def read_beside() -> None:
    with rankmend.background("io"):
        time.sleep(0.01)


def main() -> None:
    arguments = read_arguments()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = int(os.environ["RANKMEND_ATTEMPT"])
    is_failing = attempt <= arguments.fail_attempts and arguments.fail_rank in (rank, -2)
    stopping = [False]
    if arguments.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: stopping.__setitem__(0, True))
    if arguments.fail_at_start and is_failing:
        if arguments.fail_rank == -2:
            meet(arguments.result.parent, f"{attempt}", world_size, rank)
        fail(arguments)
    if arguments.grandchild and rank == 0:
        leave_daemon(arguments.grandchild)
    if arguments.forked and rank == 0 and attempt == 2:
        fork_daemon(arguments.forked)
    if rank == arguments.early_rank:
        return
    others = world_size - (0 <= arguments.early_rank < world_size)
    ballast = bytearray(b"x") * (arguments.ballast_mb * 1_000_000)
    if arguments.fail_in_restore and is_failing and "RANKMEND_SNAPSHOT" in os.environ:
        fail(arguments)
    step, state = 0, np.ones(4, np.float32)
    chosen = rankmend.resume()
    if chosen is not None:
        if arguments.fail_in_restore and is_failing:
            fail(arguments)
        if attempt <= arguments.service_fails:
            urllib.request.urlopen("http://127.0.0.1:9/tracker")
        step, state = load_layout(arguments, chosen.path, rank)
    own = np.zeros(arguments.snapshot_mb * 250_000, np.float32)  # changes with each step
    kept = rankmend.restore()
    if kept is not None:
        step, state, own = kept.step, kept.state["state"], kept.state["own"]
        assert not own.size or (own == step).all(), "a snapshot of two steps"
    with Ring(
        rank=rank,
        world_size=others,
        address=os.environ["MASTER_ADDR"],
        port=int(os.environ["MASTER_PORT"]),
        timeout_s=arguments.timeout_s,
    ) as ring:
        while step < arguments.steps:
            step += 1
            if step == arguments.steps and arguments.let_go is not None:
                while not (arguments.let_go.exists() or stopping[0]):
                    time.sleep(0.005)
            if arguments.beside:
                threading.Thread(target=read_beside).start()
            with rankmend.section("compute"):
                time.sleep(arguments.step_s)
                if rank == arguments.slow_rank and step >= arguments.slow_step:
                    time.sleep(arguments.step_s)
                if arguments.until is not None and rank == 0:
                    stopping[0] = stopping[0] or arguments.until.exists()
                shared = np.concatenate([state * (rank + 1) / 7 + step, [float(stopping[0])]])
                shared = shared.astype(np.float32)
                if rank == arguments.nan_rank and attempt <= arguments.nan_attempts:
                    shared[:4] = np.nan if step == arguments.nan_step else shared[:4]
                loss = float(shared[:4].sum())
            if is_failing and step == arguments.fail_step and not arguments.fail_in_snapshot:
                fail(arguments)
            with rankmend.section("communication"):
                ring.all_reduce(shared)
            state = (shared[:4] % 1000).astype(np.float32)
            if arguments.nan_rank >= 0:
                rankmend.step(step, loss=loss, grad_norm=float(np.abs(state).sum()))
            else:
                rankmend.step(step)
            if arguments.snapshot_every and step % arguments.snapshot_every == 0:
                own[:] = step
                if rank == arguments.flip_rank and step >= arguments.flip_step:
                    own[7] += 1e-3
                if arguments.fail_in_snapshot and is_failing and step == arguments.fail_step:
                    kill_soon()
                whose = {"rank": rank} if arguments.apart else {}
                rankmend.snapshot(step, {"state": state, "own": own, **whose})
            is_last = step == arguments.steps or shared[4] > 0
            is_due = is_last or step % arguments.every == 0
            if is_due and arguments.layout != "series":
                is_torn = attempt == 1 and step == arguments.torn_step
                save_layout(arguments, rank, world_size, step, state, is_torn)
            elif is_due and rank == 0:
                with rankmend.section("checkpoint"):
                    is_spoiled = attempt == 1 and step == arguments.spoil_step
                    spoiled = arguments.spoil if is_spoiled else ""
                    filler = arguments.filler_mb * 1_000_000
                    is_saved = save(arguments.checkpoint_dir, step, state, spoiled, filler)
                    if step == arguments.flip_saved_step and attempt == 1:
                        flip(arguments.checkpoint_dir / f"step-{step:08d}.npz")
                    if arguments.keep:
                        rotate(arguments.checkpoint_dir, arguments.keep)
                if is_saved and arguments.published is not None:
                    with arguments.published.open("a") as file:
                        file.write(f"{attempt} {step}\n")
            if is_last:
                break
    del ballast
    if rank == 0:
        body = {"step": step, "state": [float(value) for value in state]}
        arguments.result.write_text(json.dumps(body))


def load_layout(arguments: argparse.Namespace, path: str, rank: int) -> tuple[int, np.ndarray]:
    if arguments.layout == "pair":
        folder, _separator, name = path.rpartition("/")
        assert name.startswith("G_"), path
        with np.load(path) as first, np.load(f"{folder}/D_{name[2:]}") as second:
            return int(first["step"]), np.concatenate([first["state"], second["state"]])
    if arguments.layout == "per-rank":
        with np.load(arguments.resume) as file:
            assert int(file["rank"]) == rank, arguments.resume
            return int(file["step"]), np.array(file["state"])
    return load_checkpoint(path)


def save_layout(
    arguments: argparse.Namespace,
    rank: int,
    world_size: int,
    step: int,
    state: np.ndarray,
    is_torn: bool,
) -> None:
    """Save as scripts do that keep more than one file of a number, or other files beside them."""
    folder, layout = arguments.checkpoint_dir, arguments.layout
    if layout == "per-rank":
        if is_torn and rank == 2:
            others = [folder / f"step_{step}_rank_{one}.npz" for one in (0, 1, 3)]
            while not all(path.exists() for path in others):
                time.sleep(0.005)
            os.kill(os.getpid(), signal.SIGKILL)
        write(folder / f"step_{step}_rank_{rank}.npz", step=step, rank=rank, state=state)
        while is_torn:  # the rank that dies has this one die, too
            time.sleep(0.005)
        return
    if rank != 0:
        return
    if layout == "side":
        write(folder / f"step_{step}.npz", step=step, state=state)
        write(folder / "metrics.npz", loss=np.arange(step))
        write(folder / "predictions.npz", predicted=state)
    elif layout == "best-last":
        write(folder / "last.npz", step=step, state=state, exp_avg=state)
        write(folder / "best.npz", step=step, state=state / 2)
    elif layout == "pair":
        write(folder / f"G_{step}.npz", step=step, state=state[:3])
        if is_torn:
            os.kill(os.getpid(), signal.SIGKILL)
        write(folder / f"D_{step}.npz", step=step, state=state[3:])


def write(path: Path, **arrays: object) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    if rankmend.may_publish(path):
        temporary.replace(path)


def flip(path: Path) -> None:
    """Flip a bit in the middle of a checkpoint, as a disk does: its status stays as it was."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(status.st_size // 2)
        byte = file.read(1)
        file.seek(status.st_size // 2)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def save(folder: Path, step: int, state: np.ndarray, spoil: str = "", filler: int = 0) -> bool:
    path = folder / f"step-{step:08d}.npz"
    temporary = folder / f".{path.name}.{os.getpid()}"
    name = "weights" if spoil == "key" else "state"
    arrays = {name: np.tile(state, 2) if spoil == "size" else state}
    if filler:
        arrays["filler"] = np.frombuffer(bytes(filler), dtype=np.uint8)
    with temporary.open("wb") as file:
        np.savez(file, step=step, **arrays)
        file.flush()
        os.fsync(file.fileno())
    if not rankmend.may_publish(path):
        return False
    temporary.replace(path)
    return True


def rotate(folder: Path, keep: int) -> None:
    for path in sorted(folder.glob("step-*.npz"))[:-keep]:
        path.unlink()


main()

"""`rankmend preflight` as a person and a prolog run it."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent.preflight import baseline_file
from detectors.preflight.baseline import Baseline, BaselineSample
from rankmend.agent_socket import OfferedRank
from rankmend.clock import SystemClock
from recovery.launcher.agent_link import AgentLink
from tests.support.agent import JOB_ID, make_progress_file, ranks_page, running_agent
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.faults.fuse_mount import fuse_mount

pytestmark = pytest.mark.process


def start(folder: Path, *words: str) -> "subprocess.Popen[str]":
    state = ("--state-dir", str(folder / "state"))
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "rankmend.cli", "preflight", *words),
            *("--node-name", "me", *state, "--config", str(_config(folder))),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )


def _config(folder: Path, port: int = 1) -> Path:
    """Return the configuration of an agent that isn't there, whatever else runs on this machine."""
    path = folder.with_name(
        f"{folder.name}-agent.toml"
    )  # beside it: a test looks at what is left there
    if not path.exists():
        path.write_text(f'listen = "127.0.0.1:{port}"\n')
    return path


def quick(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    done = start(folder, "quick", "--json", "--no-health", *words)
    out, errors = done.communicate(timeout=DEADLINE_S)
    assert out, errors
    return done.returncode, json.loads(out)


def standings(result: dict[str, Any]) -> dict[str, str]:
    return {f"{one['name']} {one['part']}": one["standing"] for one in result["checks"]}


def ship_baseline(path: Path, result: dict[str, Any], times: float) -> None:
    """Write what five other nodes reach: so many times this one's figures."""
    samples = {
        (one["name"], one["model"]): tuple(
            BaselineSample(node, 1.0, one["value"] * times) for node in "abcde"
        )
        for one in result["figures"]
    }
    baseline_file.save(path, Baseline(samples))


def test_a_node_passes_and_later_fails_beside_a_faster_fleet(tmp_path: Path) -> None:
    """One real measurement for several claims, since each takes seconds of two cores."""
    code, result = quick(tmp_path, "--no-disk")
    assert (code, result["outcome"]) == (0, "passed")
    assert "abstained" in standings(result).values()
    saved = baseline_file.load([tmp_path / "state"])
    assert {one.node for some in saved.samples.values() for one in some} == {"me"}
    assert json.loads((tmp_path / "state" / "last.json").read_text())["outcome"] == "passed"

    ship_baseline(tmp_path / "fleet.json", result, 50.0)
    code, result = quick(tmp_path, "--no-disk", "--baseline", str(tmp_path / "fleet.json"))

    assert (code, result["outcome"]) == (2, "failed")
    hashed = next(one for one in result["checks"] if one["name"] == "cpu_hash_bytes_per_s")
    assert hashed["standing"] == "failed"
    assert hashed["value"] < hashed["limit"] < hashed["baseline"]
    again = baseline_file.load([tmp_path / "state"])
    assert again == saved  # a failed node teaches the fleet nothing


def test_a_dry_run_prints_the_load_and_runs_none(tmp_path: Path) -> None:
    done = start(
        tmp_path, "job", "--dry-run", "--disk", "/var/tmp", "--checkpoint-dir", str(tmp_path)
    )
    out, errors = done.communicate(timeout=DEADLINE_S)

    assert (done.returncode, errors) == (0, "")
    assert "writes and reads 1 GB in /var/tmp" in out
    assert f"in {tmp_path}" in out.replace("\n", "")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not a baseline"),
        (b'{"rankmend_baseline": 9, "figures": []}', "version 9"),
        (
            b'{"rankmend_baseline": 1, "figures": [{"figure": "disk_sync_s", "model": "m",'
            b' "samples": [["a", 1, -5]]}]}',
            "disk_sync_s of 'a' is -5.0",
        ),
    ],
)
def test_a_broken_baseline_is_named_and_nothing_runs(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "bad.json").write_bytes(content)

    done = start(tmp_path, "quick", "--baseline", str(tmp_path / "bad.json"))
    _out, errors = done.communicate(timeout=DEADLINE_S)

    assert done.returncode == 64
    assert "bad.json" in errors
    assert message in errors


def test_a_load_that_hangs_in_the_kernel_makes_the_check_no_later_than_its_bound(
    tmp_path: Path,
) -> None:
    """The time is the command's own: it gives it, and this machine may be slow."""
    point, faults = tmp_path / "point", tmp_path / "faults"
    module = "tests.support.faults.slow_disk"
    hang = faults / "hang"
    with fuse_mount(
        module, point, tmp_path / "served", faults, lambda: hang.unlink(missing_ok=True)
    ):
        hang.touch()
        code, result = quick(tmp_path, "--disk", str(point))

    assert (code, result["outcome"]) == (1, "unanswered")
    assert standings(result)["disk disk"] == "hung"
    assert result["left_behind"] == ["disk"]
    assert result["bound_s"] == 60


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_check_and_all_of_its_load(
    tmp_path: Path, number: signal.Signals
) -> None:
    running = start(tmp_path, "burn-in", "--no-health", "--no-disk", "--json")
    loads = eventually(lambda: _loads_of(running.pid), "a load")

    running.send_signal(number)
    running.communicate(timeout=DEADLINE_S)

    assert running.returncode == 128 + number
    eventually(lambda: not any(_is_alive(pid) for pid in loads), "the loads to be gone")
    assert not (tmp_path / "state").exists()


def test_a_node_is_checked_once_at_a_time_and_again_once_that_check_was_killed(
    tmp_path: Path,
) -> None:
    first = start(tmp_path, "burn-in", "--no-health", "--no-disk", "--json")
    eventually(lambda: _loads_of(first.pid), "a load")

    second = start(tmp_path, "quick", "--no-health", "--no-disk", "--json")
    out, errors = second.communicate(timeout=DEADLINE_S)
    first.kill()
    first.communicate(timeout=DEADLINE_S)
    third = start(tmp_path, "quick", "--no-health", "--no-disk", "--json")
    eventually(lambda: _loads_of(third.pid), "a load of the third")
    third.send_signal(signal.SIGTERM)
    third.communicate(timeout=DEADLINE_S)

    assert second.returncode == 75, errors
    assert "not started: another check of this node runs" in errors
    assert json.loads(out)["checks"] == []
    assert third.returncode == 128 + signal.SIGTERM


def test_a_node_whose_agent_knows_of_ranks_is_not_loaded_but_on_demand(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        running_agent("--socket", f"{folder}/agent.sock", "--interval", "0.1") as (agent, port),
    ):
        link = AgentLink([Path(folder) / "agent.sock"], SystemClock())
        progress = make_progress_file(Path(folder), 0, 1)
        link.offer(JOB_ID, "digits", 1, [(OfferedRank(0, 0, 77), progress)])
        eventually(lambda: ranks_page(agent, port), "the rank on the page")
        _config(tmp_path, port)

        out, errors = start(tmp_path, "quick", "--no-disk", "--json").communicate(
            timeout=DEADLINE_S
        )
        beside = start(tmp_path, "quick", "--no-health", "--no-disk", "--beside-ranks")
        eventually(lambda: _loads_of(beside.pid), "a load")
        beside.send_signal(signal.SIGTERM)
        beside.communicate(timeout=DEADLINE_S)
        link.close()

    # beside those of other jobs that are watched on this machine
    assert re.search(r"ranks of (.+ )?digits\b.* run on this node", errors), errors
    assert json.loads(out)["exit_code"] == 75


def test_a_burn_in_that_is_shorter_than_a_round_is_refused(tmp_path: Path) -> None:
    done = start(tmp_path, "burn-in", "--time", "40", "--no-disk")
    _out, errors = done.communicate(timeout=DEADLINE_S)

    assert done.returncode == 64
    assert "--time of 40 s is too short: one round could take" in errors


@pytest.mark.parametrize("begun", ["a child", "a load", "the scan of the health"])
def test_nothing_is_left_when_the_command_is_killed(tmp_path: Path, begun: str) -> None:
    """The whole command, its scan by the agent's collectors included."""
    running = start(tmp_path, "burn-in", "--disk", str(tmp_path), "--json")
    least = {"a child": 1, "a load": 2, "the scan of the health": 2}[begun]
    eventually(lambda: len(_below(running.pid)) >= least, "children")
    if begun != "a child":
        eventually(lambda: _loads_of(running.pid), "a load")
    if begun == "the scan of the health":
        eventually(lambda: len(_below(running.pid)) >= 3, "what the scan starts")
    below = _below(running.pid)

    running.kill()
    running.communicate(timeout=DEADLINE_S)

    eventually(lambda: not [pid for pid in below if _is_alive(pid)], "all of them to be gone")
    assert [one for one in tmp_path.iterdir() if one.name != "state"] == []


def _below(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in children:
            found += [int(child), *_below(int(child))]
    return found


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _loads_of(pid: int) -> Sequence[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        lines = {int(one): Path(f"/proc/{one}/cmdline").read_bytes() for one in children}
    except OSError:
        return []
    return [one for one, line in lines.items() if b"start.py" in line]


def test_merged_baselines_are_one_file(tmp_path: Path) -> None:
    for node in "ab":
        samples = {("disk_sync_s", "m"): (BaselineSample(node, 1.0, 0.001),)}
        baseline_file.save(tmp_path / f"{node}.baseline.json", Baseline(samples))
    target = tmp_path / "all.json"

    done = subprocess.run(
        [sys.executable, "-m", "rankmend.cli", "preflight", "merge", str(target), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )

    assert "of 2 nodes" in done.stdout
    merged = baseline_file.load([target])
    assert [one.node for one in merged.samples["disk_sync_s", "m"]] == ["a", "b"]

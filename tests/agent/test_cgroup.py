"""Control groups of ranks: a recorded version 2 tree, and real throttling and OOM kills."""

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.collectors.cgroup import (
    GROUPS_MAX,
    CgroupCollector,
    parse_flat,
    parse_limit,
    parse_membership,
)
from agent.ranks.table import RankSample
from rankmend.errors import NoSourceError, SourceError
from rankmend.progress import RankIdentity
from tests.support.agent import JOB_ID, PATIENT, values_of
from tests.support.collectors import PROC, SYS
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = pytest.mark.process

CGROUPS = Path("/sys/fs/cgroup")
STEP = "/system.slice/slurmstepd.scope/job_42/step_0/user/task_0"
JOB = "/system.slice/slurmstepd.scope/job_42"


def rank(number: int, pid: int) -> RankSample:
    identity = RankIdentity(JOB_ID, 1, number, number, world_size=8)
    return RankSample(identity, pid, "job", None, None)


@pytest.fixture
def sys_root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SYS, tmp_path / "sys"))


def test_group_of_a_rank_and_those_above_it_are_read() -> None:
    values = values_of(list(CgroupCollector(PROC, SYS, lambda: [rank(0, 4242)]).collect()))

    assert values[f"rank_cgroup_info{{{JOB_ID},0,{STEP}}}"] == 1
    assert values[f"rank_run_queue_seconds_total{{{JOB_ID},0}}"] == 2.5
    assert values[f"cgroup_memory_used_bytes{{{STEP}}}"] == 100 << 20
    assert f"cgroup_memory_limit_bytes{{{STEP}}}" not in values  # max: there is none
    assert values[f"cgroup_memory_limit_bytes{{{JOB}}}"] == 500 << 30
    assert values[f"cgroup_oom_kills_total{{{JOB}}}"] == 2
    assert values[f"cgroup_memory_limit_hits_total{{{JOB}}}"] == 31
    assert values[f"cgroup_cpu_periods_total{{{JOB}}}"] == 1000
    assert values[f"cgroup_cpu_throttled_periods_total{{{JOB}}}"] == 250
    assert values[f"cgroup_cpu_throttled_seconds_total{{{JOB}}}"] == 12.345678
    assert values[f"cgroup_pids{{{JOB}}}"] == 148
    assert values[f"cgroup_pids_limit{{{JOB}}}"] == 4096
    assert not [name for name in values if name.endswith("{/}")]  # the root has no limits


def test_group_stays_watched_after_its_rank_died_until_its_folder_is_gone(sys_root: Path) -> None:
    ranks = [rank(0, 4242)]
    collector = CgroupCollector(PROC, sys_root, lambda: ranks)
    list(collector.collect())
    ranks.clear()
    folder = sys_root / "fs" / "cgroup" / JOB.strip("/")

    dead = values_of(list(collector.collect()))
    shutil.rmtree(folder)
    gone = values_of(list(collector.collect()))

    assert dead[f"cgroup_oom_kills_total{{{JOB}}}"] == 2
    assert not [name for name in dead if name.startswith("rank_cgroup_info")]
    assert not [name for name in gone if "job_42" in name]
    assert gone["cgroup_success{/system.slice/slurmstepd.scope}"] == 1


def test_file_that_makes_no_sense_costs_its_own_value_only(sys_root: Path) -> None:
    (sys_root / "fs" / "cgroup" / JOB.strip("/") / "memory.events").write_text("oom_kill many\n")

    values = values_of(list(CgroupCollector(PROC, sys_root, lambda: [rank(0, 4242)]).collect()))

    assert values[f"cgroup_success{{{JOB}}}"] == 0
    assert values[f"cgroup_success{{{STEP}}}"] == 1
    assert f"cgroup_oom_kills_total{{{JOB}}}" not in values
    assert values[f"cgroup_pids{{{JOB}}}"] == 148


def test_rank_that_has_ended_is_passed_over() -> None:
    ranks = [rank(0, 4711), rank(1, 0), rank(2, 4242)]

    values = values_of(list(CgroupCollector(PROC, SYS, lambda: ranks).collect()))

    info = [name for name in values if name.startswith("rank_cgroup_info")]
    assert info == [f"rank_cgroup_info{{{JOB_ID},2,{STEP}}}"]


def test_groups_are_bounded_and_the_newest_are_kept(tmp_path: Path) -> None:
    proc, root = tmp_path / "proc", tmp_path / "sys" / "fs" / "cgroup"
    ranks = []
    for number in range(GROUPS_MAX + 10):
        (proc / str(number + 1)).mkdir(parents=True)
        (proc / str(number + 1) / "cgroup").write_text(f"0::/job-{number}\n")
        (root / f"job-{number}").mkdir(parents=True)
        (root / f"job-{number}" / "pids.current").write_text("1\n")
        ranks.append(rank(number, number + 1))

    values = values_of(list(CgroupCollector(proc, tmp_path / "sys", lambda: ranks).collect()))

    shown = [name for name in values if name.startswith("cgroup_pids{")]
    assert len(shown) == GROUPS_MAX
    assert f"cgroup_pids{{/job-{GROUPS_MAX + 9}}}" in shown


def test_node_without_control_groups_is_absent(tmp_path: Path) -> None:
    with pytest.raises(NoSourceError):
        list(CgroupCollector(PROC, tmp_path, list).collect())


def test_membership_of_version_1_is_by_controller() -> None:
    membership = parse_membership(
        "4:memory:/slurm/job_1\n3:cpu,cpuacct:/slurm\n1:name=systemd:/\n0::/\n"
    )

    assert membership.by_controller["memory"] == "/slurm/job_1"
    assert membership.by_controller["cpu"] == "/slurm"
    assert membership.unified == "/"
    assert membership.name == "/slurm/job_1"


def test_version_1_counts_in_nanoseconds_and_has_a_number_for_no_limit(tmp_path: Path) -> None:
    proc, root = tmp_path / "proc" / "7", tmp_path / "sys" / "fs" / "cgroup"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text("9:pids:/\n4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n")
    for place, text in (
        ("pids/pids.max", "100\n"),  # of the root group, which is nobody's limit
        ("memory/job/memory.usage_in_bytes", "4096\n"),
        ("memory/job/memory.limit_in_bytes", "9223372036854771712\n"),
        ("memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
        ("cpu,cpuacct/job/cpu.stat", "nr_periods 9\nnr_throttled 4\nthrottled_time 2500000000\n"),
    ):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(text)

    collector = CgroupCollector(tmp_path / "proc", tmp_path / "sys", lambda: [rank(0, 7)])
    values = values_of(list(collector.collect()))

    del values[f"rank_cgroup_info{{{JOB_ID},0,/job}}"]
    assert values == {
        "cgroup_success{/job}": 1,
        "cgroup_memory_used_bytes{/job}": 4096,
        "cgroup_oom_kills_total{/job}": 3,
        "cgroup_cpu_periods_total{/job}": 9,
        "cgroup_cpu_throttled_periods_total{/job}": 4,
        "cgroup_cpu_throttled_seconds_total{/job}": 2.5,
    }


def test_path_out_of_the_tree_is_refused() -> None:
    with pytest.raises(SourceError, match="outside of this cgroup namespace"):
        parse_membership("0::/../../etc\n")


# --- real, version 1


@contextmanager
def real_group(**limits: str) -> Iterator[str]:
    """Make a group in the version 1 trees of memory and cpu; yield its path."""
    name = f"rankmend-test-{uuid.uuid4().hex[:8]}"
    folders = [CGROUPS / controller / name for controller in ("memory", "cpu")]
    if not all(os.access(folder.parent / "cgroup.procs", os.W_OK) for folder in folders):
        pytest.skip("no writable version 1 control groups of memory and cpu here")
    try:
        for folder in folders:
            folder.mkdir()
        for file, value in limits.items():
            controller, _, rest = file.partition("_")
            (CGROUPS / controller / name / f"{controller}.{rest}").write_text(value)
        yield f"/{name}"
    finally:
        for folder in folders:
            eventually(
                lambda folder=folder: not folder.exists() or _removed(folder), f"no {folder}"
            )


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


@contextmanager
def running_in(group: str, program: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program that waits for a line, put into a group before it is given one."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", f"input()\n{program}"], stdin=subprocess.PIPE
    )
    try:
        for controller in ("memory", "cpu"):
            (CGROUPS / controller / group.strip("/") / "cgroup.procs").write_text(str(process.pid))
        yield process
    finally:
        process.kill()
        process.communicate()


def go(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def test_real_throttling_is_counted() -> None:
    with real_group(cpu_cfs_quota_us="20000") as group:
        with running_in(group, "while True: pass") as process:
            collector = CgroupCollector(Path("/proc"), Path("/sys"), lambda: [rank(3, process.pid)])
            before = values_of(list(collector.collect()))
            go(process)
            found: list[dict[str, float]] = []

            def is_throttled() -> bool:
                found.append(values_of(list(collector.collect())))
                # How long it was throttled is added when it may run again, which is later on a busy machine.
                return (
                    found[-1][f"cgroup_cpu_throttled_periods_total{{{group}}}"] >= 3
                    and found[-1][f"cgroup_cpu_throttled_seconds_total{{{group}}}"] > 0
                )

            eventually(is_throttled, "throttling")

    assert before[f"cgroup_cpu_throttled_seconds_total{{{group}}}"] == 0
    assert before[f"rank_cgroup_info{{{JOB_ID},3,{group}}}"] == 1
    assert found[-1][f"cgroup_cpu_periods_total{{{group}}}"] >= 3


def test_real_oom_kill_is_counted_after_the_rank_is_gone() -> None:
    with real_group(memory_limit_in_bytes=str(50 << 20)) as group:
        with running_in(group, "kept = bytearray(b'x' * (200 << 20))") as process:
            collector = CgroupCollector(Path("/proc"), Path("/sys"), lambda: [rank(0, process.pid)])
            before = values_of(list(collector.collect()))
            go(process)
            code = process.wait(DEADLINE_S)

            after = values_of(list(collector.collect()))

    assert code == -signal.SIGKILL
    assert before[f"cgroup_memory_limit_bytes{{{group}}}"] == 50 << 20
    assert before[f"cgroup_oom_kills_total{{{group}}}"] == 0
    assert after[f"cgroup_oom_kills_total{{{group}}}"] == 1
    assert after[f"cgroup_memory_limit_hits_total{{{group}}}"] > 0


# --- parsers


@PATIENT
@given(st.text())
def test_any_membership_is_understood_or_refused(text: str) -> None:
    try:
        membership = parse_membership(text)
    except SourceError:
        return
    assert membership.name.startswith("/")


@PATIENT
@given(
    st.text(st.characters(exclude_characters="/\n\0"), min_size=1).filter(
        lambda name: name not in ("..", ".")
    )
)
def test_every_path_of_a_group_is_read_back(name: str) -> None:
    assert parse_membership(f"0::/{name}").name == f"/{name}"


@PATIENT
@given(st.text())
def test_any_flat_file_and_limit_is_understood_or_refused(text: str) -> None:
    for parse in (parse_flat, parse_limit):
        try:
            parse(text)
        except SourceError:
            continue

from pathlib import Path

import pytest

from rankmend.errors import NoSourceError, SourceError
from recovery.launcher.host.oom import OomCounter, find_oom_file, read_oom_kills

# Forms of Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
V2_EVENTS = "low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\noom_group_kill 0\n"
V1_CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"


def make_v2(folder: Path) -> tuple[Path, Path]:
    (folder / "proc").write_text("0::/job.slice/a\n")
    events = folder / "cgroup" / "job.slice" / "a" / "memory.events"
    events.parent.mkdir(parents=True)
    events.write_text(V2_EVENTS)
    return folder / "proc", events


def test_cgroup_v2_kills_are_read(tmp_path: Path) -> None:
    proc, events = make_v2(tmp_path)

    assert find_oom_file(proc, tmp_path / "cgroup") == events
    assert read_oom_kills(events) == 2


def test_cgroup_v1_kills_are_read(tmp_path: Path) -> None:
    (tmp_path / "proc").write_text("5:cpu,cpuacct:/x\n4:memory:/job\n0::/\n")
    control = tmp_path / "cgroup" / "memory" / "job" / "memory.oom_control"
    control.parent.mkdir(parents=True)
    control.write_text(V1_CONTROL)

    assert find_oom_file(tmp_path / "proc", tmp_path / "cgroup") == control
    assert read_oom_kills(control) == 5


def test_kills_are_counted_from_the_last_look(tmp_path: Path) -> None:
    proc, events = make_v2(tmp_path)
    counter = OomCounter(proc, tmp_path / "cgroup")

    before = counter.take_new_kills()
    events.write_text(V2_EVENTS.replace("oom_kill 2", "oom_kill 3"))

    assert (before, counter.take_new_kills(), counter.take_new_kills()) == (0, 1, 0)


def test_a_node_without_the_counter_tells_of_no_kill(tmp_path: Path) -> None:
    (tmp_path / "proc").write_text("0::/nowhere\n")

    with pytest.raises(NoSourceError):
        find_oom_file(tmp_path / "proc", tmp_path / "cgroup")
    assert OomCounter(tmp_path / "proc", tmp_path / "cgroup").take_new_kills() == 0


def test_a_counter_without_its_line_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "memory.events"
    path.write_text("low 0\n")

    with pytest.raises(SourceError, match="oom_kill"):
        read_oom_kills(path)

"""How a fabric test of several processes ends: by a signal, with the load of every node, or with a result that can't be kept."""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.eventually import DEADLINE_S, eventually

pytestmark = pytest.mark.process

LOAD_BYTES = 8 << 20


class Nodes:
    """Three nodes of one test, each a process of its own, that meet in a folder."""

    def __init__(self, folder: Path, kind: str, seconds: str = "30", state: str = "state") -> None:
        self.shared, self.state = folder / "shared", folder / state
        self.shared.mkdir(mode=0o700)
        words = [sys.executable, "-m", "rankmend.cli", "fabric", "test", kind, "--nnodes", "3", "--rail", "lo",
                 "--seconds", seconds, "--join-timeout", "5m", "--shared", str(self.shared), "--state-dir", str(self.state),
                 "--size", str(1 << 26), "--metrics-file", str(folder / "metrics.prom")]  # fmt: skip
        self.all = [
            subprocess.Popen(
                [*words, "--node-rank", str(rank)],
                env={"PATH": "/usr/bin:/bin", "SLURMD_NODENAME": f"n{rank}", "HOME": str(folder)},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            )
            for rank in range(3)
        ]  # fmt: skip

    def children(self) -> list[psutil.Process]:
        found = []
        for node in self.all:
            with contextlib.suppress(psutil.NoSuchProcess):
                found += psutil.Process(node.pid).children()
        return found

    def close(self) -> None:
        for node in self.all:
            node.kill()
            node.communicate()

    def has_load(self) -> bool:
        """Return whether a connection of theirs carries more than talk with the first node ever does."""
        told = subprocess.run(["ss", "-tnpHiO"], capture_output=True, text=True, check=True).stdout
        pids = [f"pid={node.pid}," for node in self.all]
        lines = [line for line in told.splitlines() if any(pid in line for pid in pids)]
        sent = [re.search(r"bytes_sent:(\d+)", line) for line in lines if line.startswith("ESTAB")]
        return any(int(one[1]) > LOAD_BYTES for one in sent if one is not None)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    leftover = [one.name for one in tmp_path.rglob("*") if one.name.endswith((".new", ".prom"))]
    assert leftover == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_first_node_ends_the_test_of_all(
    folder: Path, number: signal.Signals, code: int
) -> None:
    nodes = Nodes(folder, "pairs")
    try:
        eventually(nodes.has_load, "the load")
        nodes.all[0].send_signal(number)
        told = [node.communicate(timeout=DEADLINE_S) for node in nodes.all]
        has_load = nodes.has_load()
    finally:
        nodes.close()

    assert [node.returncode for node in nodes.all] == [code, 2, 2]
    assert told[0] == ("", f"rankmend: stopped by {number.name}\n")
    for _output, errors in told[1:]:  # a busy machine misses the farewell, and finds nobody there
        assert f"the first node was stopped by {number.name}" in errors or "is gone" in errors
    assert not has_load
    assert [one for one in nodes.shared.rglob("*") if one.is_file()] == []
    assert not nodes.state.exists()


@pytest.mark.torch
def test_a_signal_to_the_first_node_ends_the_collectives_of_all(folder: Path) -> None:
    nodes = Nodes(folder, "collectives", seconds="0.1")
    try:
        eventually(lambda: len(nodes.children()) == len(nodes.all), "the collectives")
        children = nodes.children()
        nodes.all[0].send_signal(signal.SIGINT)
        for node in nodes.all:
            node.communicate(timeout=DEADLINE_S)
        _gone, left = psutil.wait_procs(children, timeout=DEADLINE_S)
    finally:
        nodes.close()

    assert [node.returncode for node in nodes.all] == [130, 2, 2]
    assert left == []


def test_ctrl_c_on_all_nodes_at_once_ends_all_of_them(folder: Path) -> None:
    nodes = Nodes(folder, "ring")
    try:
        eventually(nodes.has_load, "the load")
        for _again in range(2):  # srun hands on each
            for node in reversed(nodes.all):  # none hears of the first one's end before its own
                node.send_signal(signal.SIGINT)
        told = [node.communicate(timeout=DEADLINE_S) for node in nodes.all]
    finally:
        nodes.close()

    assert [node.returncode for node in nodes.all] == [130, 130, 130]
    assert told == [("", "rankmend: stopped by SIGINT\n")] * 3


def test_a_result_that_cannot_be_kept_is_shown_and_the_reason_told(folder: Path) -> None:
    (folder / "file").touch()
    nodes = Nodes(folder, "ring", seconds="0.1", state="file/state")
    try:
        told = [node.communicate(timeout=DEADLINE_S) for node in nodes.all]
    finally:
        nodes.close()
    (folder / "metrics.prom").unlink()

    assert [node.returncode for node in nodes.all] == [2, 0, 0]
    assert "flows at once" in told[0][0]
    assert "rankmend: the result is not kept: " in told[0][1]


def test_closed_terminal_ends_the_test_with_the_code_of_its_signal(folder: Path) -> None:
    shared = folder / "shared"
    shared.mkdir(mode=0o700)
    ours, its = pty.openpty()
    words = [sys.executable, "-m", "rankmend.cli", "fabric", "test", "find", "--nnodes", "2", "--node-rank", "0",
             "--rail", "lo", "--join-timeout", "5m", "--shared", str(shared), "--state-dir", str(folder / "state")]  # fmt: skip
    with subprocess.Popen(["setsid", "--ctty", *words], stdin=its, stdout=its, stderr=its) as node:
        os.close(its)
        try:
            eventually(lambda: any(shared.rglob("*")), "the note for the other node")
            os.close(ours)

            assert node.wait(timeout=DEADLINE_S) == 128 + signal.SIGHUP
        finally:
            node.kill()

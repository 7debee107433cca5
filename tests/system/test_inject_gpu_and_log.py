"""Faults of GPUs and of the kernel's log by `rankmend inject`, with NVML's stand-in and the real log."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.eventually import DEADLINE_S, eventually
from tests.support.nvml_stub.node import StubNode

KMSG = Path("/dev/kmsg")
GPU = "gpu:GPU-00000000-0000-0000-0000-000000000000"

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="what breaks a node needs root"),
]


def command(folder: Path, *words: str, marks: str = '"gpu", "kernel-log"') -> list[str]:
    file = folder / "drills.toml"
    file.write_text(f'[drills]\nallow = [{marks}]\npaths = ["{folder}"]\n')
    places = (f"--marks={file}", f"--undo-dir={folder / 'undo'}", f"--state-dir={folder / 'state'}")
    return [sys.executable, "-m", "rankmend.cli", "inject", *words, *places]


def run(
    folder: Path, *words: str, marks: str = '"gpu", "kernel-log"'
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, *words, marks=marks), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip


def standing(folder: Path) -> list[Path]:
    return list((folder / "undo").glob("*.json"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
def test_answer_of_the_stand_in_is_put_back_when_the_injector_ends(
    tmp_path: Path, number: int
) -> None:
    state = tmp_path / "nvml"
    StubNode().save(state)
    before = state.read_bytes()

    words = ("gpu-stub", f"--on=path:{state}", "--answer=0/lost=1", "--yes", "--for=300s")
    injector = subprocess.Popen(command(tmp_path, *words), stdin=subprocess.DEVNULL)

    def is_changed() -> bool:
        assert injector.poll() is None
        return b"0/lost 1\n" in state.read_bytes()

    eventually(is_changed, "the answer is changed")
    injector.send_signal(number)
    injector.wait(DEADLINE_S)
    eventually(lambda: not standing(tmp_path), "all is undone")

    assert state.read_bytes() == before


@pytest.mark.parametrize(
    "words", [("gpu-clocks", "--mhz=500"), ("gpu-power", "--watts=200")], ids=["clocks", "power"]
)
def test_fault_of_a_gpu_that_is_not_there_leaves_nothing_to_undo(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = run(tmp_path, *words, f"--on={GPU}", "--yes", "--yes")

    assert done.returncode in (1, 2)  # no such GPU; no NVML
    assert "NVML" in done.stderr
    assert standing(tmp_path) == []


@pytest.fixture
def log() -> Iterator[int]:
    """Open the kernel's log behind its newest line: whoever asks for readers sees this process."""
    if not os.access(KMSG, os.W_OK):
        pytest.skip(f"{KMSG} is not writable here")
    descriptor = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
    os.lseek(descriptor, 0, os.SEEK_END)
    yield descriptor
    os.close(descriptor)


def read(log: int, text: str) -> bool:
    """Return whether a line with this text has come."""
    while True:
        try:
            line = os.read(log, 8192)
        except BlockingIOError:
            return False
        except BrokenPipeError:  # lines were overwritten before they were read
            continue
        if text.encode() in line:
            return True


def xid(code: int) -> tuple[str, ...]:
    return ("xid", "--on=node", f"--code={code}", "--device=0000:3b:00.0", "--kmsg")


def test_line_for_the_kernels_log_needs_two_answers_and_names_its_readers(
    log: int, tmp_path: Path
) -> None:
    code = 10_000 + uuid.uuid4().int % 80_000

    once = run(tmp_path, *xid(code), "--yes")
    is_early = read(log, f"Xid (PCI:0000:3b:00): {code},")
    twice = run(tmp_path, *xid(code), "--yes", "--yes")

    assert once.returncode == 2
    assert f"({os.getpid()})" in once.stderr
    assert "nothing was done" in once.stderr
    assert not is_early
    assert twice.returncode == 0, twice.stderr
    assert read(log, f"Xid (PCI:0000:3b:00): {code},")


def test_line_for_the_kernels_log_is_refused_on_a_node_that_is_not_marked_for_it(
    log: int, tmp_path: Path
) -> None:
    done = run(tmp_path, *xid(79), "--yes", "--yes", marks='"gpu"')

    assert done.returncode == 2
    assert "not for kernel-log" in done.stderr

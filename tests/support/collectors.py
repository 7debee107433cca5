"""What the tests of the agent's collectors share: recorded trees, series, collectors that fail or hang."""

import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from threading import Event

from agent.assembly.families import FAMILIES
from agent.collectors.kernel_log import KernelLogCollector
from agent.findings.policy_files import load_policy
from agent.metrics import Metric
from agent.sampling.collection import CollectorOutcome, CollectorView
from tests.support.agent import ROOT, FakeClock, answer_of
from tests.support.eventually import DEADLINE_S

# A host whose files are written by hand.
TREE = ROOT / "tests" / "fixtures" / "sys-host"
PROC = TREE / "proc"
SYS = TREE / "sys"
LOAD = Metric("rankmend_host_load_processes", 3.0, (("window", "1m"),))
POLICY = load_policy()
KMSG = Path("/dev/kmsg")


def unpack_ttar(archive: Path, folder: Path) -> None:
    """Unpack the plain-text archive format of node_exporter's fixtures."""
    path, lines = folder, iter(archive.read_text(errors="surrogateescape").splitlines())
    for line in lines:
        key, _, value = line.partition(": ")
        if key in ("Directory", "Path"):
            path = folder / value
            assert path.resolve().is_relative_to(folder) or key == "Path"
            path.parent.mkdir(parents=True, exist_ok=True)
        if key == "Directory":
            path.mkdir(exist_ok=True)
        elif key == "SymlinkTo":
            path.symlink_to(value)
        elif key == "Lines":
            content = "\n".join(next(lines) for _ in range(int(value)))
            path.write_text(content.replace("NULLBYTE", "\0") + "\n", errors="surrogateescape")


class FakeCollector:
    """Answers what the test says; an exception is raised."""

    def __init__(self, name: str, *answers: Metric | Exception) -> None:
        self.name = name
        self.interval_s = 1.0
        self.answers = answers
        self.runs = 0

    def collect(self) -> Iterator[Metric]:
        self.runs += 1
        for answer in self.answers:
            if isinstance(answer, Exception):
                raise answer
            yield answer


class StuckCollector(FakeCollector):
    """Answers once and then hangs until the test lets it go."""

    def __init__(self, name: str) -> None:
        super().__init__(name, LOAD)
        self.release = threading.Event()

    def collect(self) -> Iterator[Metric]:
        self.runs += 1
        if self.runs > 1:
            assert self.release.wait(DEADLINE_S)
        yield LOAD


def info(name: str, *values: str) -> Metric:
    labels = FAMILIES[f"rankmend_{name}"].labels
    return Metric(f"rankmend_{name}", 1, tuple(zip(labels, values, strict=True)))


def plane(device: str, plane: str = "compute", rail: str = "0", port: str = "1") -> Metric:
    return info("topology_plane_info", device, port, plane, rail, "guessed")


def view_of(name: str, *metrics: Metric) -> CollectorView:
    return CollectorView(
        name,
        1.0,
        CollectorOutcome.MEASURED,
        "",
        0.5,
        0.1,
        None,
        0.5,
        0,
        is_stale=False,
        answer=answer_of(metrics),
    )


class FakeDevice:
    """A kernel ring: what it holds can be overwritten, and reading then says so once."""

    def __init__(self, *records: bytes) -> None:
        self.ring: deque[bytes] = deque(records)
        self.is_overwritten = False
        self.error: Exception | None = None
        self.is_closed = False
        self._wake = Event()

    def put(self, *records: bytes) -> None:
        self.ring.extend(records)
        self._wake.set()

    def overwrite(self, count: int) -> None:
        for _ in range(count):
            self.ring.popleft()
        self.is_overwritten = True

    def fail(self, error: Exception) -> None:
        self.error = error
        self._wake.set()

    def read(self) -> bytes | None:
        if self.error is not None:
            raise self.error
        if self.is_overwritten:
            self.is_overwritten = False
            raise BrokenPipeError
        return self.ring.popleft() if self.ring else None

    def wait(self, timeout_s: float) -> bool:
        woken = self._wake.wait(min(timeout_s, 0.02))
        self._wake.clear()
        return woken

    def wake(self) -> None:
        self._wake.set()

    def close(self) -> None:
        self.is_closed = True


def collector(
    device: FakeDevice, saved_path: Path | None = None, boot_id: str = "boot-1", **options: object
) -> KernelLogCollector:
    return KernelLogCollector(
        FakeClock(),
        POLICY,
        KMSG,
        saved_path=saved_path,
        open_device=lambda _path: device,
        boot_id=boot_id,
        **options,  # type: ignore[arg-type]
    )

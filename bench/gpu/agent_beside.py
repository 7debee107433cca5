"""A real `rankmend agent` with its own configuration beside the report's jobs, and what it costs."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

ROOT: Final = Path(__file__).resolve().parents[2]
RANKMEND: Final = (sys.executable, "-c", "from rankmend.cli import main; main()")
START_S_MAX: Final = 15.0
END_S_MAX: Final = 5.0
ASK_S_MAX: Final = 10.0
# the clocks are the defaults; no path of this machine's own agent is used or written
_CONFIG: Final = "[intervals_s]\ngpu = 1.0\n"


class AgentError(Exception):
    """The agent has failed."""


def environment() -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class AgentBeside:
    def __init__(self, config: str = _CONFIG) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rankmend-gpu-"))
        self.socket = self.folder / "agent.sock"
        self._log = self.folder / "agent.log"
        path = self.folder / "agent.toml"
        path.write_text(config, encoding="utf-8")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(*RANKMEND, "agent", "--config", str(path)),
                    *("--listen", "127.0.0.1:0", "--socket", str(self.socket)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=environment(),
            )
        self._port: int | None = None

    @property
    def port(self) -> int:
        """Return the port, once the agent has said it. Raises AgentError."""
        end_s = time.monotonic() + START_S_MAX
        while self._port is None:
            for line in self.log().splitlines():
                if "agent started" in line and " port=" in line:
                    self._port = int(line.rpartition(" port=")[2].split()[0])
            if self._port is None:
                if self.process.poll() is not None or time.monotonic() > end_s:
                    raise AgentError(f"the agent did not start: {self.log()[-300:]}")
                time.sleep(0.05)
        return self._port

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def page(self) -> str:
        """Return the metrics. Raises AgentError."""
        url = f"http://127.0.0.1:{self.port}/metrics"
        try:
            with urllib.request.urlopen(url, timeout=ASK_S_MAX) as answer:
                return str(answer.read().decode())
        except (OSError, urllib.error.URLError) as error:
            raise AgentError(f"{url}: {error}") from error

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Return the labels and values of one metric."""
        return samples_of(self.page(), name)

    def wait_for(
        self, is_there: Callable[[], Any], timeout_s: float, every_s: float = 0.25
    ) -> bool:
        end_s = time.monotonic() + timeout_s
        while not is_there():
            if time.monotonic() > end_s:
                return False
            time.sleep(every_s)
        return True

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S_MAX)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def agent_beside(config: str = _CONFIG) -> Iterator[AgentBeside]:
    agent = AgentBeside(config)
    try:
        yield agent
    finally:
        agent.end()


def samples_of(page: str, name: str) -> list[tuple[dict[str, str], float]]:
    return [
        (dict(sample.labels), float(sample.value))
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name
    ]


# ---- what processes cost, from /proc


def family_of(pid: int) -> list[int]:
    """Return a process and all that it has started and that still run."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (fields := _stat(int(folder.name))):
            parents.setdefault(int(fields[1]), []).append(int(folder.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, of what it has started, and of what it has reaped."""
    ticks = sum(int(text) for one in family_of(pid) for text in _stat(one)[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> tuple[float, float]:
    """Return PSS and RSS of one process."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0.0, 0.0
    kib = {
        name: int(line.split()[1])
        for line in text.splitlines()
        for name in ("Pss:", "Rss:")
        if line.startswith(name)
    }
    return kib.get("Pss:", 0) / 1024, kib.get("Rss:", 0) / 1024


def has_mapped(pid: int, library: str) -> bool:
    """Return whether a process has a file of this name mapped."""
    try:
        text = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return any(f"/{library}" in line for line in text.splitlines())


def largest_mib(pid: int, count: int) -> str:
    """Return the PSS of the mappings of a process that take the most, by name."""
    by_name: dict[str, int] = {}
    name = ""
    try:
        lines = Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for line in lines.splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            name = Path(rest[4]).name if len(rest) > 4 else "anonymous"
        elif first == "Pss:":
            by_name[name] = by_name.get(name, 0) + int(rest[0])
    most = sorted(by_name.items(), key=lambda one: -one[1])[:count]
    return ", ".join(f"{name} {kib / 1024:.1f}" for name, kib in most)


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none once it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="latin-1").rpartition(")")[2].split()
    except OSError:
        return []

"""Trains, breaks and recovers, three times in a minute: run it with `make demo`.

One job of four ranks is run undisturbed, then with a rank killed in mid-run, then with a rank
stopped. The node agent runs beside it; what is shown of the ranks is read from its /metrics.
At the end: where the time of each recovery went, and whether the parameters of all three runs
are equal, bit for bit. The exit code is 1 when they are not.

    python examples/demo.py [--torch] [--json] [--keep] [--picture SVG]
"""

import argparse
import collections
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo_screen import JsonScreen, PictureScreen, Recovery, RichScreen, RunResult, Screen
from prometheus_client.parser import text_string_to_metric_families

EXAMPLES = Path(__file__).resolve().parent
RANKS = 4
POLL_S = 0.2
COLLECT_S = 0.25  # the agent's own 1 s makes for slow bars
SCRAPE_TIMEOUT_S = 5.0
AGENT_START_S = 20.0
JOB_S_MAX = 180.0  # an undisturbed run takes 6 s on two cores, 20 s with torch
STOP_S = 15.0
QUERY_S = 30.0
HANG_STOPPED_S = 2.0  # the default is longer; nobody wants to wait in a demo
LINES_KEPT = 200


class DemoError(Exception):
    """The demo can't go on; the message is for a person."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The training job that all runs have in common."""

    title: str
    script: Path
    steps: int
    checkpoint_every: int


NUMPY = Workload("numpy over TCP", EXAMPLES / "digits" / "train.py", 300, 30)
TORCH = Workload("PyTorch DDP, gloo", EXAMPLES / "digits_torch" / "train.py", 200, 20)


@dataclass(frozen=True, slots=True)
class Fault:
    signal: signal.Signals
    rank: int
    at_ratio: float  # share of all steps


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    title: str
    fault: Fault | None


SCENARIOS = (
    Scenario("undisturbed", "undisturbed", None),
    Scenario("killed", "rank 2 killed (SIGKILL)", Fault(signal.SIGKILL, 2, 0.45)),
    Scenario("stopped", "rank 1 stopped (SIGSTOP)", Fault(signal.SIGSTOP, 1, 0.45)),
)


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of this demo, and how to call rankmend."""

    folder: Path
    command: tuple[str, ...]

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def data(self) -> Path:
        return self.folder / "digits.npz"

    @property
    def agent_socket(self) -> Path:
        return self.folder / "agent.sock"

    def query(self, *arguments: str) -> Any:
        """Return what a rankmend command answers as JSON."""
        command = [*self.command, *arguments, "--json", "--state-dir", str(self.state)]
        try:
            answer = subprocess.run(
                command, capture_output=True, text=True, timeout=QUERY_S, check=True
            )
            return json.loads(answer.stdout)
        except subprocess.CalledProcessError as error:
            raise DemoError(f"{' '.join(command)}: {error.stderr.strip()}") from error
        except (subprocess.TimeoutExpired, ValueError) as error:
            raise DemoError(f"{' '.join(command)}: {error}") from error


class Child:
    """One process of ours with its output lines. Ended with the demo, whatever happens."""

    def __init__(self, command: list[str], on_line: Callable[[str], None]) -> None:
        self.started_s = time.monotonic()
        self.lines: collections.deque[str] = collections.deque(maxlen=LINES_KEPT)
        self._on_line = on_line
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            self._on_line(line.rstrip())

    def join(self) -> None:
        """Wait for the last line of a process that has ended."""
        self._reader.join(STOP_S)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.join()


@dataclass(frozen=True, slots=True)
class RankSteps:
    """What /metrics says of one job."""

    job_id: str
    attempt: int
    steps: Mapping[int, int]
    pids: Mapping[int, int]


class Agent:
    """The node agent, and what its /metrics says."""

    def __init__(self, place: Place) -> None:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}/metrics"
        self.scrapes = 0
        self.series = 0
        command = [
            *(*place.command, "agent", f"--listen=127.0.0.1:{port}"),
            *(f"--socket={place.agent_socket}", f"--interval={COLLECT_S:g}"),
        ]
        self.child = Child(command, lambda _line: None)

    def wait_ready(self) -> None:
        deadline_s = time.monotonic() + AGENT_START_S
        while self._scrape() is None or not self.series:
            if self.child.process.poll() is not None or time.monotonic() > deadline_s:
                raise DemoError("the agent does not answer:\n" + "\n".join(self.child.lines))
            time.sleep(POLL_S)

    def read_steps(self, job_name: str) -> RankSteps | None:
        """Return the steps of a job's ranks, or None while the agent knows of none."""
        families = self._scrape() or {}
        infos = [
            sample.labels
            for sample in families.get("rankmend_rank_info", ())
            if sample.labels["job_name"] == job_name
        ]
        if not infos:
            return None
        job_id = infos[0]["job_id"]
        steps = {
            int(sample.labels["rank"]): int(sample.value)
            for sample in families.get("rankmend_rank_step_number", ())
            if sample.labels["job_id"] == job_id
        }
        pids = {int(info["rank"]): int(info["pid"]) for info in infos}
        return RankSteps(job_id, max(int(info["attempt"]) for info in infos), steps, pids)

    def _scrape(self) -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(self.url, timeout=SCRAPE_TIMEOUT_S) as answer:
                text = answer.read().decode()
        except (urllib.error.URLError, OSError):
            return None
        families = {family.name: family.samples for family in text_string_to_metric_families(text)}
        self.scrapes += 1
        self.series = sum(len(samples) for samples in families.values())
        return families


class Run:
    """One run of the job, and the fault that it meets."""

    def __init__(
        self, place: Place, agent: Agent, screen: Screen, workload: Workload, scenario: Scenario
    ) -> None:
        self._place = place
        self._agent = agent
        self._screen = screen
        self._workload = workload
        self._scenario = scenario
        self._result_path = place.folder / f"{scenario.name}.json"
        self._injected_unix_s: float | None = None
        self._kept_stopped: int | None = None  # pidfd of the rank that is stopped
        self._job_id: str | None = None

    def go(self) -> RunResult:
        """Run the job to its end."""
        self._screen.begin(self._scenario.name)
        child = Child(self._command(), self._tell)
        try:
            while child.process.poll() is None:
                if time.monotonic() - child.started_s > JOB_S_MAX:
                    raise self._error(f"not done after {JOB_S_MAX:g} s", child)
                self._watch()
                time.sleep(POLL_S)
            elapsed_s = time.monotonic() - child.started_s
        finally:
            child.stop()
        if child.process.returncode != 0:
            raise self._error(f"ended with exit code {child.process.returncode}", child)
        result = self._read_result(elapsed_s)
        self._screen.end(self._scenario.name, result)
        return result

    def _command(self) -> list[str]:
        checkpoints = self._place.folder / f"checkpoints-{self._scenario.name}"
        return [
            *self._place.command,
            *("run", "--standalone", f"--nproc-per-node={RANKS}"),
            f"--job={self._scenario.name}",
            f"--state-dir={self._place.state}",
            f"--checkpoint-dir={checkpoints}",
            f"--agent-socket={self._place.agent_socket}",
            f"--hang-stopped-s={HANG_STOPPED_S:g}",
            str(self._workload.script),
            f"--data={self._place.data}",
            f"--checkpoint-dir={checkpoints}",
            f"--result={self._result_path}",
            f"--steps={self._workload.steps}",
            f"--checkpoint-every={self._workload.checkpoint_every}",
            f"--print-every={self._workload.steps}",
        ]

    def _tell(self, line: str) -> None:
        """Show what rankmend itself says; the ranks' output is kept for an error."""
        if line.startswith("rankmend: "):
            text = line.removeprefix("rankmend: ").replace(f"{self._place.folder}/", "")
            self._screen.event(text)

    def _watch(self) -> None:
        told = self._agent.read_steps(self._scenario.name)
        if told is None:
            return
        self._job_id = told.job_id
        self._screen.steps(told.attempt, told.steps)
        if (
            self._kept_stopped is not None
        ):  # rankmend lets a stopped rank go on once; this one stops again
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._kept_stopped, signal.SIGSTOP)
        fault = self._scenario.fault
        if fault is None or self._injected_unix_s is not None or len(told.steps) < RANKS:
            return
        if min(told.steps.values()) >= fault.at_ratio * self._workload.steps:
            pid = told.pids[fault.rank]
            self._injected_unix_s = time.time()
            os.kill(pid, fault.signal)
            if fault.signal is signal.SIGSTOP:
                self._kept_stopped = os.pidfd_open(pid)
            short = fault.signal.name.removeprefix("SIG")
            self._screen.fault(f"kill -{short} {pid}", fault.rank)

    def _read_result(self, elapsed_s: float) -> RunResult:
        result = json.loads(self._result_path.read_text(encoding="ascii"))
        recovery = None
        if self._scenario.fault is not None:
            recovery = self._read_recovery()
        return RunResult(
            name=self._scenario.name,
            title=self._scenario.title,
            steps=result["step"],
            elapsed_s=elapsed_s,
            accuracy_ratio=result["accuracy_ratio"],
            sha256=result["sha256"],
            recovery=recovery,
        )

    def _read_recovery(self) -> Recovery:
        if self._injected_unix_s is None:
            raise DemoError(f"{self._scenario.title}: the job ended before its fault was due")
        incidents = [
            incident
            for incident in self._place.query("incidents")["incidents"]
            if incident["job_id"] == self._job_id
        ]
        if len(incidents) != 1:
            raise DemoError(f"{self._scenario.title}: {len(incidents)} incidents instead of one")
        return _recovery(incidents[0], self._injected_unix_s)

    def _error(self, what: str, child: Child) -> DemoError:
        output = "\n".join(list(child.lines)[-30:])
        return DemoError(f"{self._scenario.title}: {what}. The end of its output:\n{output}")


def demonstrate(place: Place, workload: Workload, screen: Screen) -> bool:
    """Run all scenarios and return whether every run ended with the same bits."""
    prepare = [sys.executable, str(EXAMPLES / "digits" / "prepare.py"), str(place.data)]
    subprocess.run(prepare, check=True, timeout=JOB_S_MAX)
    agent = Agent(place)
    try:
        agent.wait_ready()
        with screen:
            results = [Run(place, agent, screen, workload, scenario).go() for scenario in SCENARIOS]
    finally:
        agent.child.stop()
    is_equal = len({(result.steps, result.sha256) for result in results}) == 1
    screen.conclude(results, is_equal=is_equal, scrapes=agent.scrapes, series=agent.series)
    return is_equal


def _recovery(incident: Mapping[str, Any], injected_unix_s: float) -> Recovery:
    """Return the account of an incident, with detection counted from our own signal."""
    told: Mapping[str, float | None] = incident["phases"]
    detect_s = told["detect_s"]
    if (opened_unix_s := incident.get("opened_unix_s")) is not None:
        detect_s = opened_unix_s - injected_unix_s
    total_s = incident["total_s"]
    if total_s is not None and detect_s is not None and told["detect_s"] is not None:
        total_s += detect_s - told["detect_s"]
    return Recovery(
        incident_id=incident["id"],
        outcome=incident["outcome"],
        phases={**told, "detect_s": detect_s},
        total_s=total_s,
        steps_recomputed=incident["steps_recomputed"],
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _rankmend_command() -> tuple[str, ...]:
    script = Path(sys.executable).parent / "rankmend"
    return (str(script),) if script.is_file() else (sys.executable, "-m", "rankmend.cli")


def main() -> int:
    parser = argparse.ArgumentParser(description="Train, break, recover.")
    parser.add_argument("--torch", action="store_true", help="train with PyTorch DDP on gloo")
    parser.add_argument("--json", action="store_true", help="print only the results, as JSON")
    parser.add_argument("--keep", action="store_true", help="keep the folder of the runs")
    parser.add_argument(
        "--picture", type=Path, metavar="SVG", help="save the last run and the results as a picture"
    )
    arguments = parser.parse_args()
    workload = TORCH if arguments.torch else NUMPY
    titles = {scenario.name: scenario.title for scenario in SCENARIOS}
    screen: Screen = JsonScreen()
    if not arguments.json:
        shown = (workload.title, titles, RANKS, workload.steps, HANG_STOPPED_S)
        screen = (
            RichScreen(*shown)
            if arguments.picture is None
            else PictureScreen(*shown, arguments.picture)
        )
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="rankmend-demo-"))
    try:
        is_equal = demonstrate(Place(folder, _rankmend_command()), workload, screen)
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: stopped", file=sys.stderr)
        return 130
    finally:
        if arguments.keep:
            print(f"demo: everything is kept in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())

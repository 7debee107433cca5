"""What the demo shows: live on a terminal, as lines in a log, or as JSON."""

import json
import platform
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

REFRESHES_PER_S = 8
BAR_WIDTH = 36


@dataclass(frozen=True, slots=True)
class Recovery:
    """Where the time of one recovery went."""

    incident_id: str
    outcome: str
    # By name (`detect_s`), in their order, in seconds; detection from the moment when the demo sent
    # the signal. None: not observed.
    phases: dict[str, float | None]
    total_s: float | None
    steps_recomputed: int | None


@dataclass(frozen=True, slots=True)
class RunResult:
    name: str
    title: str
    steps: int
    elapsed_s: float
    accuracy_ratio: float
    sha256: str  # hash of the final parameters
    recovery: Recovery | None  # if there was one


class Screen:
    """What is told while the demo runs. This one shows nothing."""

    def __enter__(self) -> "Screen":
        return self

    def __exit__(self, *_error: object) -> None:
        """The last run is over, or the demo failed."""

    def begin(self, name: str) -> None:
        """The run with this name begins."""

    def event(self, text: str) -> None:
        """Rankmend said this about the current run."""

    def steps(self, attempt: int, steps: Mapping[int, int]) -> None:
        """The ranks of the current run have come so far."""

    def fault(self, text: str, rank: int) -> None:
        """The demo did this to a rank of the current run."""

    def end(self, name: str, result: RunResult) -> None:
        """The run with this name is over."""

    def conclude(
        self, results: list[RunResult], *, is_equal: bool, scrapes: int, series: int
    ) -> None:
        """All runs are over, and this came of them."""


class JsonScreen(Screen):
    """Prints one JSON object at the end."""

    def conclude(
        self, results: list[RunResult], *, is_equal: bool, scrapes: int, series: int
    ) -> None:
        answer = {
            "machine": platform.platform(),
            "runs": [asdict(result) for result in results],
            "is_equal": is_equal,
            "metrics": {"scrapes": scrapes, "series": series},
        }
        print(json.dumps(answer, indent=2))


class RichScreen(Screen):
    """Shows bars, events and tables. Events come from the threads that read output."""

    def __init__(
        self,
        workload: str,
        titles: Mapping[str, str],
        ranks: int,
        steps: int,
        hang_stopped_s: float,
    ) -> None:
        self._console = Console(highlight=False)
        self._workload = workload
        self._titles = titles
        self._ranks = ranks
        self._steps_max = steps
        self._hang_stopped_s = hang_stopped_s
        self._lock = threading.Lock()
        self._current: str | None = None
        self._began_s = 0.0
        self._attempt = 0
        self._steps: Mapping[int, int] = {}
        self._victim: int | None = None
        self._victim_attempt = 0
        self._results: dict[str, RunResult] = {}
        self._events: list[tuple[str, Text]] = []  # when, and what
        self._spinner = Spinner("dots", style="cyan")
        self._live: Live | None = None

    def __enter__(self) -> "RichScreen":
        self._console.print(
            Text.assemble(
                ("\nrankmend demo", "bold"),
                f"  {self._ranks} ranks, each a process, learn handwritten digits\n"
                f"({self._workload}). Three runs: nothing happens; a rank is killed;\n"
                "a rank is stopped. What is shown of the ranks comes from the agent's /metrics.\n",
            )
        )
        if self._console.is_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=self._render,
                refresh_per_second=REFRESHES_PER_S,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def begin(self, name: str) -> None:
        with self._lock:
            self._current, self._began_s = name, time.monotonic()
            self._attempt, self._steps, self._victim, self._events = 0, {}, None, []
        self._print(Text(f"\n{self._titles[name]}", style="bold"))

    def event(self, text: str) -> None:
        self._add(text, _style(text))

    def steps(self, attempt: int, steps: Mapping[int, int]) -> None:
        with self._lock:
            self._attempt, self._steps = attempt, dict(steps)

    def fault(self, text: str, rank: int) -> None:
        with self._lock:
            self._victim, self._victim_attempt = rank, self._attempt
            step = self._steps.get(rank)
        self._add(f"the demo: {text}, which is rank {rank}, at about step {step}", "bold red")

    def end(self, name: str, result: RunResult) -> None:
        with self._lock:
            self._current, self._results[name] = None, result
            events = self._events
        summary = _ended(result)
        if self._live is not None:  # the terminal keeps the story above the live part
            self._live.refresh()
            self._console.print(Group(summary, _story(events)))
        else:
            self._print(summary)

    def conclude(
        self, results: list[RunResult], *, is_equal: bool, scrapes: int, series: int
    ) -> None:
        """Print what it came to: the time lost, and whether the result is the same."""
        self._console.print(_time_table(results))
        self._console.print(
            "detect counts from the demo's own signal; a stopped rank gets"
            f" {self._hang_stopped_s:g} s before it is called hung\n",
            style="dim",
        )
        self._console.print(_proof_table(results, is_equal=is_equal))
        if is_equal:
            verdict = Text("✔ Equal, bit for bit: the faults left no trace in the result.", "green")
        else:
            verdict = Text("✘ The final parameters differ.", "bold red")
        self._console.print(verdict)
        self._console.print(
            f"The agent's /metrics was read {scrapes} times, {series} series at the end.\n",
            style="dim",
        )

    def _add(self, text: str, style: str) -> None:
        with self._lock:
            at = f"{time.monotonic() - self._began_s:.2f} s"
            line = Text(text, style)
            self._events.append((at, line))
        self._print(Text.assemble((f"{at:>9}  ", "dim"), line))

    def _print(self, line: Text) -> None:
        """Print a line of the story where there is no live screen to show it on."""
        if self._live is None:
            self._console.print(line, soft_wrap=True)

    def _render(self) -> RenderableType:
        with self._lock:
            parts: list[RenderableType] = []
            for name, title in self._titles.items():
                if name == self._current:
                    parts.extend(self._render_current(title))
                elif name not in self._results:
                    parts.append(Text(f"  {title}", style="dim"))
            return Group(*parts)

    def _render_current(self, title: str) -> list[RenderableType]:
        head = Table.grid(padding=(0, 1))
        attempt = Text(f"attempt {self._attempt}" if self._attempt else "starting", "cyan")
        head.add_row(self._spinner, Text(title, style="bold"), attempt)
        bars = Table.grid(padding=(0, 1))
        for rank in range(self._ranks):
            step = self._steps.get(rank, 0)
            is_hit = rank == self._victim and self._attempt == self._victim_attempt
            style = "red" if is_hit else "cyan"
            bars.add_row(
                Text(f"    rank {rank}", style="bold red" if is_hit else ""),
                ProgressBar(
                    self._steps_max,
                    step,
                    width=BAR_WIDTH,
                    complete_style=style,
                    finished_style="green",
                ),
                Text(f"{step:>4}/{self._steps_max}", style="dim"),
            )
        return [head, bars, _story(self._events)]


class PictureScreen(RichScreen):
    """Also saves the last run and the results as a picture, for the README."""

    def __init__(
        self,
        workload: str,
        titles: Mapping[str, str],
        ranks: int,
        steps: int,
        hang_stopped_s: float,
        path: Path,
    ) -> None:
        super().__init__(workload, titles, ranks, steps, hang_stopped_s)
        self._console = Console(highlight=False, record=True, force_terminal=False, width=82)
        self._path = path

    def end(self, name: str, result: RunResult) -> None:
        super().end(name, result)
        self._console.export_text(clear=True)  # only the last run is shown
        self._console.print(_ended(result), _story(self._events))

    def conclude(
        self, results: list[RunResult], *, is_equal: bool, scrapes: int, series: int
    ) -> None:
        super().conclude(results, is_equal=is_equal, scrapes=scrapes, series=series)
        self._console.save_svg(str(self._path), title="make demo")


def _story(events: list[tuple[str, Text]]) -> RenderableType:
    """Return the events below each other, long ones indented under their own text."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", width=9, style="dim", no_wrap=True)
    grid.add_column()
    for at, line in events:
        grid.add_row(at, line)
    return Padding(grid, (0, 0, 1, 0))


def _style(text: str) -> str:
    if text.startswith("incident"):
        return "yellow"
    if text.startswith("done"):
        return "green"
    return ""


def _ended(result: RunResult) -> Text:
    return Text.assemble(("✔ ", "green"), (f"{result.title:<26}", "bold"), _summary(result))


def _summary(result: RunResult) -> str:
    return (
        f"{result.steps} steps in {result.elapsed_s:.1f} s,"
        f" {result.accuracy_ratio:.1%} of unseen digits right"
    )


def _table(title: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    table.add_column("")
    return table


def _time_table(results: list[RunResult]) -> Table:
    """Return the phases below each other, a column a fault: it fits 80 characters."""
    faults = [(one.title, one.recovery) for one in results if one.recovery is not None]
    table = _table("Time to recovery, in seconds")
    for title, _recovery in faults:
        table.add_column(title, justify="right")
    names = dict.fromkeys(name for _title, recovery in faults for name in recovery.phases)
    for name in names:
        times = [recovery.phases.get(name) for _title, recovery in faults]
        is_shown = any(times) if name == "retries_s" else any(one is not None for one in times)
        if is_shown:
            phase = name.removesuffix("_s").replace("_", " ")
            table.add_row(phase, *(_seconds(one) for one in times))
    table.add_section()
    totals = [_seconds(recovery.total_s) for _title, recovery in faults]
    table.add_row("fault to first new step", *totals, style="bold")
    redone = [_count(recovery.steps_recomputed) for _title, recovery in faults]
    table.add_row("steps recomputed", *redone)
    return table


def _proof_table(results: list[RunResult], *, is_equal: bool) -> Table:
    table = _table("Final parameters")
    table.add_column("sha256", no_wrap=True)
    for result in results:
        table.add_row(result.name, Text(result.sha256, style="green" if is_equal else "red"))
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)

"""Five incidents, told from the first message to the last as people read them at each moment: what the launchers print, what the
commands say, and what the incident's page says.

The controller, its decisions, its journal and all words are the real ones; nodes and clock are those of `nodes_bench`, so that the
same text comes out each time. `docs/generate.py` writes it into docs/internals/five-incidents.md.
"""

import html
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rich.console import Console

from rankmend.cli.screens.incidents import cells_of
from rankmend.cli.screens.status_view import render as render_status
from rankmend.cli.sources.picture import Picture, Wanted
from recovery.api import wire
from recovery.console.acts import EVERYTHING
from recovery.console.incident import check_command, view_page, view_waiting
from recovery.console.rendering import render
from recovery.console.views.incident_view import entries_of_incident, view_incidents, with_clock
from recovery.console.views.job_view import reason_of, state_of, view_ledger
from recovery.console.views.plan_view import view_plan
from recovery.controller.cluster.gate import Answer, Judgement
from recovery.journal.incident_records import WaitCause
from recovery.journal.narration.launcher_lines import LauncherLines
from recovery.messages.outside import PersonAct
from tests.support.nodes_bench import SETTINGS, Bench, command, evidence

JOB = "llama"
_BEAT_S = 0.25
_WIDTH = 150


@dataclass(frozen=True)
class Moment:
    """What people read at one time."""

    at_s: float  # since the fault
    what: str  # happened in the world; empty: time passed
    printed: tuple[str, ...]  # by the launchers
    status: tuple[str, ...]
    incidents: str  # the row
    page: tuple[str, ...]


@dataclass(frozen=True)
class Story:
    name: str
    about: str
    moments: tuple[Moment, ...]


class _Teller:
    """Lets a job run, and writes down what people read whenever a line is printed or a word changes."""

    def __init__(self, about: Bench) -> None:
        self.bench = about
        self.lines = LauncherLines(names_nodes=True)
        self.moments: list[Moment] = []
        self.drained: dict[str, wire.HoldView] = {}
        self._noted = 0
        self._step = self._done = 0
        self._happened = ""
        self._fault_s: float | None = None
        self._seen: object = None
        self._printed()

    def train(self, seconds: float) -> None:
        """Let the ranks make a step each second."""
        for _second in range(round(seconds)):
            self._step += 1
            self._done += 1
            self.bench.beat(1.0, self._step, self._done)
            self._look()

    def begin(self, what: str) -> None:
        """From now on what people read is written down; the clock of the story starts."""
        self._fault_s = self.bench.clock.now_s()
        self._printed()
        self._seen = self._words()
        self._write(what)

    def note(self, what: str) -> None:
        """Say with the next moment what happens in the world."""
        self._happened = what

    def go_on(self, seconds: float) -> None:
        """Let time pass, while the nodes carry out their orders."""
        for _part in range(round(seconds / _BEAT_S)):
            self.bench.beat(_BEAT_S)
            self._look()

    def stand(self, seconds_max: float) -> None:
        """Let ranks stand still until the next attempt has begun."""
        attempt = self.bench.control.ledger.attempt
        for _second in range(round(seconds_max)):
            self.bench.age(1.0)
            self._look()
            if self.bench.control.ledger.attempt > attempt:
                return
        raise AssertionError(f"no next attempt within {seconds_max:g} s")

    def go_back_to(self, step: int) -> None:
        self._step, self._done = step, 0

    def _look(self) -> None:
        if self._fault_s is None:
            self._printed()
            return
        words = self._words()
        is_new = words != self._seen or bool(self._happened)
        if is_new or len(self.bench.journal.entries) > self._noted:
            self._seen = words
            self._write(self._happened, is_new=is_new)
            self._happened = ""

    def _printed(self) -> tuple[str, ...]:
        new = self.bench.journal.entries[self._noted :]
        self._noted = len(self.bench.journal.entries)
        told = [line for entry in new if (line := self.lines.note(entry)) is not None]
        return tuple(f"rankmend: {text}" for line in told for text in line.text.splitlines())

    def _write(self, what: str, *, is_new: bool = True) -> None:
        printed = self._printed()
        if not (printed or is_new):
            return
        assert self._fault_s is not None, "begin() came first"
        now_s = self.bench.clock.now_s()
        self.moments.append(
            Moment(now_s - self._fault_s, what, printed, self._status(), self._row(), self._page())
        )

    # What people read.

    def _words(self) -> object:
        job, incident = self._job(), self._incident()
        plan = self._plan()
        return (
            job.state,
            None if incident is None else (incident.standing, incident.caught_up_s is None),
            None if plan is None else plan.judgement_reason,
        )

    def _job(self) -> wire.JobView:
        ledger = self.bench.control.ledger
        view = view_ledger(
            ledger,
            SETTINGS.job_id,
            JOB,
            state=state_of(ledger),
            owner="ann",
            reason=reason_of(ledger, JOB),
            policy=SETTINGS.policy,
            now_unix_s=self.bench.clock.unix_s(),
        )
        view.highest_step = self.bench.control.highest_step
        return view

    def _incident(self) -> wire.IncidentView | None:
        return next(iter(reversed(view_incidents(self.bench.journal.entries, JOB))), None)

    def _plan(self) -> wire.PlanView | None:
        return view_plan(self.bench.control.ledger, SETTINGS.job_id, JOB)

    def _nodes(self) -> list[wire.NodeView]:
        ledger = self.bench.control.ledger
        ranks = {place.node: list(place.ranks) for place in ledger.placement}
        return [
            wire.NodeView(
                node=name,
                job_id=SETTINGS.job_id,
                heard_age_s=self.bench.silent_for_s(name),
                attempt=ledger.attempt,
                ranks=ranks.get(name, []),
                is_spare=name not in ranks,
                boot_id="boot-1",
                held=self.bench.held.get(name) or ledger.members[name].left,
            )
            for name in self.bench.nodes
            if name in ledger.members
        ]

    def _status(self) -> tuple[str, ...]:
        plan = self._plan()
        picture = Picture(
            "https://controller.example:9477",
            [self._job()],
            self._nodes(),
            [] if plan is None else [plan],
            wire.Cluster([], list(self.drained.values()), [], []),
        )
        lines = _text_of(render_status(picture, Wanted(JOB, False, False)))
        return tuple(lines[1:])  # the first is the controller's address

    def _row(self) -> str:
        incident = self._incident()
        if incident is None:
            return ""
        told = with_clock(incident, self.bench.clock.unix_s())
        return "  ".join(cells_of(told, None)[2:])

    def _page(self) -> tuple[str, ...]:
        incident, plan = self._incident(), self._plan()
        if incident is None:
            return ()
        entries = self.bench.journal.entries
        waiting = None
        if plan is not None:
            waiting = view_waiting(plan, self._nodes(), list(self.drained.values()))
        own = entries_of_incident(entries, incident.incident_id)
        text = render(
            "incident.html.j2", root="", page=view_page(incident, own, entries, waiting, "", self._job()),
            incident=incident, story=[], opened=own[0].unix_s, plan=waiting, node=None, readings=(), tails=(),
            may=EVERYTHING, check=check_command, is_controller=True, now_unix_s=self.bench.clock.unix_s(),
        )  # fmt: skip
        head, _cost, _rest = text.partition('<div class="two">')
        return tuple(_lines_of(head))


def _text_of(shown: object) -> list[str]:
    out = io.StringIO()
    Console(width=_WIDTH, file=out, no_color=True).print(shown)
    return [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]


def _lines_of(page: str) -> Iterator[str]:
    """Yield what a page says, one line a paragraph; buttons in brackets."""
    page = re.sub(r'<a class="button[^>]*>([^<]+)</a>', r"[\1]", page)
    page = re.sub(r"</(h1|h2|p|li|section)>", "\n", page)
    for line in html.unescape(re.sub(r"<[^>]+>", "", page)).splitlines():
        if words := " ".join(line.split()):
            yield words


# The five.

_CHECKPOINTS = replace(SETTINGS, has_checkpoints=True)


def _training() -> _Teller:
    """Return a job of two nodes and a spare, which saved step 7 and has made step 30."""
    teller = _Teller(Bench(_CHECKPOINTS))
    teller.bench.beat(1.0)
    teller.train(30.0)
    return teller


def rank_killed() -> Story:
    teller = _training()
    teller.bench.kill("b")
    teller.begin("SIGKILL ends rank 1 on node b.")
    teller.go_on(10.0)
    _train_on(teller)
    return Story(
        "A rank is killed", "Nobody knows who sent the signal, so no node is blamed.", tuple(teller.moments)
    )  # fmt: skip


def hang() -> Story:
    teller = _training()
    teller.begin("Both ranks stand still in a collective: no step ends any more.")
    teller.stand(180.0)
    teller.go_on(10.0)
    _train_on(teller)
    return Story("A hang", "The limit comes from the policy and the job's own steps.", tuple(teller.moments))  # fmt: skip


def node_lost() -> Story:
    teller = _training()
    teller.bench.nodes["b"].is_silent = True
    teller.begin("Node b loses its power. The rank on node a waits in a collective.")
    teller.stand(240.0)
    teller.go_on(10.0)
    _train_on(teller)
    return Story("A node is lost", "The spare takes its place once nothing can run on it any more.", tuple(teller.moments))  # fmt: skip


def gpu_lost() -> Story:
    teller = _training()
    teller.bench.control.take_evidence(
        evidence("b", alertname="RankmendGpuLost", summary="GPU 3 has fallen off the bus", action="reset_gpu")
    )  # fmt: skip
    teller.bench.kill("b", 6)
    teller.begin(
        "GPU 3 of node b falls off the bus: the agent's alert arrives, and rank 1 aborts (SIGABRT)."
    )
    teller.go_on(1.0)
    _drain(teller, "b", "ann: GPU 3 is to be replaced")
    teller.go_on(10.0)
    _train_on(teller)
    return Story("A GPU is lost, and its node drained", "An alert beside the failure counts against the node.", tuple(teller.moments))  # fmt: skip


def plan_waits() -> Story:
    teller = _training()
    teller.bench.answer = Answer(
        Judgement.WAIT,
        "jobs named llama* need approval for each restart (policy of the cluster)",
        WaitCause.APPROVAL,
    )
    teller.bench.kill("b")
    teller.begin("SIGKILL ends rank 1 on node b. The policy asks a person before each restart.")
    teller.go_on(60.0)
    plan = teller._plan()
    assert plan is not None, "the plan waits"
    teller.bench.control.take_command(
        replace(command(PersonAct.APPROVE), incident_id=plan.incident_id)
    )
    teller.bench.answer = Answer(Judgement.ALLOWED, "approved by ada")
    teller.note("ada types `rankmend approve`, or presses the button.")
    teller.go_on(10.0)
    _train_on(teller)
    return Story("A plan that waits for a person", "Nothing is done until somebody approves.", tuple(teller.moments))  # fmt: skip


def _drain(teller: _Teller, node: str, reason: str) -> None:
    who, _colon, why = reason.partition(": ")
    teller.bench.held[node] = f"drained by {who}: {why}"
    teller.drained[node] = wire.HoldView(node, "drain", who, why, None, teller.bench.clock.unix_s())
    teller.note(f"{who} drains node {node} ({why}).")


def _train_on(teller: _Teller) -> None:
    teller.go_back_to(7)
    teller.train(30.0)


STORIES: tuple[Callable[[], Story], ...] = (rank_killed, hang, node_lost, gpu_lost, plan_waits)


def markdown() -> str:
    """Return the stories for the documentation."""
    return "\n".join(_markdown_of(tell()) for tell in STORIES)


def _markdown_of(story: Story) -> str:
    parts = [f"## {story.name}\n\n{story.about}\n"]
    for moment in story.moments:
        head = f"### +{moment.at_s:.1f} s" if moment.at_s else "### +0 s"
        happened = f"\n{moment.what}\n" if moment.what else ""
        blocks = [
            ("launchers print", moment.printed),
            (f"`rankmend status {JOB}`", moment.status),
            ("`rankmend incidents`", (moment.incidents,) if moment.incidents else ()),
            ("the incident's page", moment.page),
        ]
        body = "\n".join(
            f"{name}:\n\n" + "".join(f"    {line}\n" for line in lines)
            for name, lines in blocks
            if lines
        )
        parts.append(f"{head}\n{happened}\n{body}")
    return "\n".join(parts)

"""How often the defaults give up a healthy job, and how soon they end a broken one. By simulation.

    python bench/give_up.py                       # the tables of docs/operate/giving-up.md, 3 minutes
    python bench/give_up.py --failures 5000       # quicker, and coarser
    python bench/give_up.py --output /tmp/a.json

Decided by the code that decides in production: failures become records, `recovery.journal.fold` folds
them, `recovery.controller.job.planner` plans and chooses checkpoints. Simulated is the world: failures come at
random (exponential), training advances, checkpoints are saved. Time is counted in hours.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

from detectors.finding import Blame, Finding, Kind, Severity
from recovery.controller.job.planner import choose_checkpoint, is_progress, plan, refuse_choice
from recovery.journal.attempt_records import (
    AttemptEnded,
    AttemptResult,
    AttemptStarted,
    AttemptVerified,
    Cause,
    Choice,
    Milestone,
)
from recovery.journal.fold.entry_fold import fold
from recovery.journal.incident_machine import Outcome, answer
from recovery.journal.incident_records import Failure, IncidentEvent, IncidentOpened, TryFailed
from recovery.journal.job_records import JobOpened, LauncherStarted
from recovery.journal.ledger import Ledger
from recovery.journal.limits import PlanStep, Policy
from recovery.journal.records import Entry, Record
from recovery.messages.candidates import Candidate, CheckpointFormat, CheckpointVerdict
from recovery.messages.exchange import RankError

STEPS_PER_H = 600  # steps of 6 s
CHECKPOINTS_KEPT = 3
YEAR_H = 8766.0
JOB_H = 54 * 24.0  # a job's length, as Llama 3's; then another one begins
OLD_NO_PROGRESS_MAX = (
    3  # the rule of before: so many restarts without a new highest step, of any cause
)


@dataclass(frozen=True)
class Case:
    """A healthy job and what befalls it."""

    name: str
    mtbf_h: float = 3.1  # Llama 3: 419 interruptions in 54 days on 16,384 GPUs
    checkpoint_h: float = 1.0
    restart_h: float = 0.1  # from a failure to the first new step
    nodes: int = 2048
    ranks: int = 16384
    bad_node_ratio: float = 0.0  # failures that come from one node, which has no spare


HEALTHY = (
    Case("Llama 3: 16,384 GPUs, hourly checkpoints"),
    Case("the same, restarts of 30 min", restart_h=0.5),
    Case("the same, a checkpoint each 3 h", checkpoint_h=3.0),
    Case("twice as many failures", mtbf_h=1.55),
    Case(
        "100,000 GPUs, checkpoints each 30 min",
        mtbf_h=0.5,
        checkpoint_h=0.5,
        nodes=12500,
        ranks=100000,
    ),
    Case("a failure an hour, hourly checkpoints", mtbf_h=1.0),
    Case("every third failure from one bad node, no spare", bad_node_ratio=0.33),
    Case("64 GPUs, a failure a month", mtbf_h=730.0, nodes=8, ranks=64),
)

Symptom = Callable[[Random, Case], Failure]


def failure_of(
    signature: str,
    blame: Blame,
    *,
    kind: Kind = Kind.RANK_FAILED,
    node: int | None = None,
    rank: int | None = None,
    exit_code: int = 1,
    type_name: str = "",
    step: int | None = None,
) -> Failure:
    finding = Finding(
        kind, Severity.CRITICAL, blame, signature, "job", 0,
        "" if node is None else f"n{node}", () if rank is None else (rank,), (), 0.0, signature,
    )  # fmt: skip
    error = RankError(type_name, signature, "") if type_name else None
    return Failure(0, finding, exit_code, rank, error, step, False, (0,))


def random_failure(random: Random, case: Case) -> Failure:
    """Return one of the kinds that Llama 3 had, by its table of causes."""
    node = 0 if random.random() < case.bad_node_ratio else random.randrange(case.nodes)
    rank = node * (case.ranks // case.nodes) + random.randrange(case.ranks // case.nodes)
    draw = random.random()
    if draw < 0.72:  # GPU 30 %, its memory 17 %, host, NIC, processors, disks ...
        symptom = random.choice(["device", "killed", "crashed", "host"])
        kind = Kind.HOST if symptom == "host" else Kind.RANK_FAILED
        exit_code = {"killed": 137, "crashed": 139}.get(symptom, 1)
        return failure_of(
            f"{symptom}:x", Blame.RANK, kind=kind, node=node, rank=rank, exit_code=exit_code
        )
    if draw < 0.85:  # software 13 %
        type_name = random.choice(["RuntimeError", "OSError", "TimeoutError", "ValueError"])
        message = random.randrange(5)
        return failure_of(
            f"exception:{type_name}:{message}",
            Blame.RANK,
            node=node,
            rank=rank,
            type_name=type_name,
        )
    if draw < 0.96:  # switches and cables 8 %, and what accuses nobody
        return failure_of("communication", Blame.COMMUNICATION, type_name="DistBackendError")
    return failure_of("hung:unknown", Blame.NOBODY, kind=Kind.RANK_HUNG)


class SimJob:
    """One job by the real rules. Ends when the planner says so."""

    def __init__(self, case: Case, policy: Policy) -> None:
        self._case = case
        self._policy = policy
        self.hours = 0.0
        self.ledger = Ledger()
        self._checkpoints: list[CheckpointVerdict] = []  # newest first
        self._base_h = self._reached_h = 0.0
        self.given_up: str | None = None
        self._incidents = 0
        self.old_barren = 0
        self.old_given_up = 0
        self._record(JobOpened("job", "job"), LauncherStarted(("n0", "n1"), 2, 1, "0"))
        self._start(Cause.FIRST, None)

    def _record(self, *records: Record) -> None:
        for record in records:
            at_s = self.hours * 3600.0
            self.ledger = fold(
                self.ledger, Entry(self.ledger.number + 1, at_s, at_s, "boot", record)
            )

    def _start(self, cause: Cause, choice: Choice | None) -> None:
        ledger = self.ledger
        chosen = choice or choose_checkpoint(ledger, self._policy, self._checkpoints)
        incident = ledger.incident
        self._record(
            AttemptStarted(
                ledger.attempt + 1,
                cause,
                chosen,
                None if incident is None else incident.state.incident_id,
                None if incident is None else incident.state.try_number,
                is_progress(ledger, chosen),
            )
        )
        self._base_h = 0.0
        if chosen.restore is not None and chosen.restore.step is not None:
            self._base_h = chosen.restore.step / STEPS_PER_H

    def run_for(self, hours: float, failure: Failure) -> None:
        """Let the attempt last so long and then fail so; plan and start the next one."""
        trained_h = hours - self._case.restart_h
        self.hours += hours
        if trained_h > 0:
            self._train(trained_h)
        step = None
        if trained_h > 0:
            step = int((self._base_h + trained_h) * STEPS_PER_H)
        self._fail(replace(failure, attempt=self.ledger.attempt, step=step))

    def _train(self, trained_h: float) -> None:
        at_h = self._base_h + trained_h
        step = int(at_h * STEPS_PER_H)
        records: list[Record] = [AttemptVerified(self.ledger.attempt, True, (0,))]
        incident = self.ledger.incident
        if incident is not None:
            records.append(IncidentEvent(answer(incident.state, Outcome.SUCCEEDED, "it trains")))
        self._record(*records, Milestone(self.ledger.attempt, step, step))
        if at_h > self._reached_h:
            self.old_barren, self._reached_h = 0, at_h
        every_h = self._case.checkpoint_h
        saved = [self._base_h + every_h * n for n in range(1, int(trained_h / every_h) + 1)]
        for save_h in saved[-CHECKPOINTS_KEPT:]:
            step = round(save_h * STEPS_PER_H)
            candidate = Candidate(
                f"/c/{step}", step, CheckpointFormat.FOLDER, 1, self.hours * 3600.0
            )
            self._checkpoints.insert(0, CheckpointVerdict(candidate, True, "whole"))
        self._checkpoints.sort(key=lambda one: -(one.candidate.step or 0))
        del self._checkpoints[CHECKPOINTS_KEPT:]

    def _fail(self, failure: Failure) -> None:
        policy, before = self._policy, self.ledger.incident
        if self.old_barren >= OLD_NO_PROGRESS_MAX:
            self.old_given_up, self.old_barren = self.old_given_up + 1, 0
        self.old_barren += 1
        if before is None:
            self._incidents += 1
            name = f"job-{self._incidents}"
            self._record(IncidentOpened(name, failure, 0.0, self.ledger.highest_step, policy))
        else:
            state = before.state
            self._record(TryFailed(state.incident_id, state.try_number, "failed", failure))
        made = plan(failure.finding, self.ledger, policy, None)
        incident = self.ledger.incident
        assert incident is not None, "opened above"
        if made.step is not PlanStep.ESCALATE and incident.state.try_number >= policy.tries_max:
            made = replace(made, step=PlanStep.ESCALATE, reason="too many tries")
        if made.step is PlanStep.ESCALATE:
            self.given_up = made.reason
            return
        outcome = Outcome.ACCEPTED if before is None else Outcome.FAILED
        self._tell(outcome)
        self._record(AttemptEnded(self.ledger.attempt, AttemptResult.FAILED))
        self._tell(Outcome.SUCCEEDED)
        choice = choose_checkpoint(self.ledger, policy, self._checkpoints)
        self.given_up = refuse_choice(failure.finding, self.ledger, policy, choice)
        if self.given_up is None:
            self._start(Cause.INCIDENT, choice)
            self._tell(Outcome.SUCCEEDED)

    def _tell(self, outcome: Outcome) -> None:
        incident = self.ledger.incident
        assert incident is not None, "called within an incident"
        self._record(IncidentEvent(answer(incident.state, outcome, "simulated")))


def run_healthy(case: Case, failures: int, seed: int, policy: Policy) -> dict[str, float]:
    """Return how often a job was given up over so many failures."""
    random = Random(seed)
    job = SimJob(case, policy)
    hours, given_up, old = 0.0, 0, 0
    for _failure in range(failures):
        job.run_for(random.expovariate(1.0 / case.mtbf_h), random_failure(random, case))
        if job.given_up is not None or job.hours > JOB_H:
            given_up += job.given_up is not None
            hours, old = hours + job.hours, old + job.old_given_up
            job = SimJob(case, policy)
    hours, old = hours + job.hours, old + job.old_given_up
    return {
        "failures": failures,
        "years": hours / YEAR_H,
        "given_up": given_up,
        "old_rule": old,
        "years_between": hours / YEAR_H / given_up if given_up else math.inf,
        "days_between_old": hours / 24.0 / old if old else math.inf,
    }


BROKEN: tuple[tuple[str, Callable[[Random, int], tuple[float, Failure]]], ...] = (
    (
        "the same exception at the same step",
        lambda _random, _n: (
            0.1 + 0.5,
            failure_of("exception:E", Blame.PROGRAM, type_name="E"),
        ),
    ),
    (
        "dies at import, each time of the same",
        lambda _random, _n: (0.01, failure_of("exception:E", Blame.PROGRAM, type_name="E")),
    ),
    (
        "dies at import, in turn of two errors",
        lambda _random, n: (
            0.01,
            failure_of(f"exception:E{n % 2}", Blame.PROGRAM, type_name=f"E{n % 2}"),
        ),
    ),
    (
        "dies at import, each time of another error",
        lambda _random, n: (
            0.01,
            failure_of(f"exception:E{n}", Blame.PROGRAM, type_name=f"E{n}"),
        ),
    ),
    (
        "killed from outside before the first step, each time",
        lambda random, _n: (
            0.01,
            failure_of(
                "killed:SIGKILL", Blame.RANK, node=random.randrange(9), rank=1, exit_code=137
            ),
        ),
    ),
    (
        "SIGSEGV of one rank before the next checkpoint",
        lambda random, _n: (
            0.1 + random.uniform(0.3, 0.5),
            failure_of("crashed:SIGSEGV", Blame.RANK, node=5, rank=40, exit_code=139),
        ),
    ),
    (
        "a hang that accuses nobody, at about the same place",
        lambda random, _n: (
            0.1 + random.uniform(0.3, 0.5),
            failure_of("hung:unknown", Blame.NOBODY, kind=Kind.RANK_HUNG),
        ),
    ),
    (
        "one bad node without a spare, always other symptoms",
        lambda random, n: (
            0.1 + random.uniform(0.3, 0.5),
            failure_of(f"device:{n}", Blame.RANK, node=5, rank=n % 8, exit_code=n),
        ),
    ),
)


def run_broken(
    way: Callable[[Random, int], tuple[float, Failure]], seed: int, policy: Policy
) -> tuple[int, float]:
    """Return after how many restarts and hours a broken job was ended."""
    random, job = Random(seed), SimJob(HEALTHY[0], policy)
    job.run_for(1.5, random_failure(random, HEALTHY[0]))  # it has a checkpoint
    began_h, restarts = job.hours, job.ledger.restarts
    for number in range(1, 1000):
        hours, failure = way(random, number)
        job.run_for(hours, failure)
        if job.given_up is not None:
            return job.ledger.restarts - restarts, job.hours - began_h
    raise SystemExit("a broken job was never ended")


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(rows[0]) + " |"
    yield "| " + " | ".join("---" for _cell in rows[0]) + " |"
    for row in rows[1:]:
        yield "| " + " | ".join(row) + " |"


def _years(years: float, observed: float) -> str:
    never = f"never in {observed:,.1f} years"
    return never if math.isinf(years) else f"once in {years:,.1f} years"


def _days(days: float) -> str:
    return "never" if math.isinf(days) else f"{days:,.1f} days"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--failures", type=int, default=15_000, help="of each healthy job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    policy = Policy()
    healthy = {
        case.name: {**asdict(case), **run_healthy(case, given.failures, given.seed, policy)}
        for case in HEALTHY
    }
    broken = {name: run_broken(way, given.seed, policy) for name, way in BROKEN}
    rows = [("job", "fails each", "given up", "3 restarts without a new step once in")]
    rows += [
        (
            name,
            f"{told['mtbf_h']:g} h",
            _years(told["years_between"], told["years"]),
            _days(told["days_between_old"]),
        )
        for name, told in healthy.items()
    ]
    print("\n".join(table(rows)))
    rows = [("what is broken", "restarts", "hours")]
    rows += [(name, str(told[0]), f"{told[1]:.1f}") for name, told in broken.items()]
    print("\n" + "\n".join(table(rows)))
    if given.output is not None:
        given.output.write_text(json.dumps({"healthy": healthy, "broken": broken}, indent=1))


if __name__ == "__main__":
    main()

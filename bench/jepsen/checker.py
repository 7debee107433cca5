"""Whether a history keeps the rules of several controllers on one database. Pure.

Each rule is checked from what was written and seen alone: the checker knows nothing of the faults, of what a
controller believed, or of how the database refuses a write.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Final

from bench.jepsen.history import History, Limits, RankLife, SeenOrder, WrittenEntry, WrittenJournal
from recovery.journal.attempt_records import AttemptStarted
from recovery.journal.cluster_records import Spent
from recovery.journal.fold.entry_fold import fold
from recovery.journal.incident_records import IncidentOpened
from recovery.journal.job_records import PersonActed
from recovery.journal.ledger import Ledger
from recovery.messages.outside import PersonAct

HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S
# A plan is dated when it is let through, and found in the database when it is committed: as long as a controller
# waits for the answer to a commit lies between (recovery.journal.postgres.postgres_journal.DOUBT_S_MAX), twice.
_SLACK_S: Final = 20.0


class Rule(Enum):
    """What must hold whatever goes wrong."""

    SOUND = "journals are sound: numbered without gaps, with the right checksums"
    ONE_OWNER = "an epoch has one owner, and a journal's epochs never fall"
    MONOTONE = "attempts never fall, in journals and in orders"
    JOURNALED = "an order says what the journal says: no decision is lost, none precedes its record"
    STARTED_ONCE = "a node starts the ranks of an attempt once"
    ALONE = "ranks of an attempt start when none of another one is alive, and no rank runs twice"
    BUDGET = "budgets are never exceeded, of a job or of the cluster"
    ENDED = "once the faults are over, every incident ends: recovered or given up"


@dataclass(frozen=True, slots=True)
class Violation:
    rule: Rule
    about: str  # the journal or job
    text: str


def check(history: History) -> tuple[Violation, ...]:
    """Return every violation of a rule that the history shows."""
    return tuple(_violations(history))


def _violations(history: History) -> Iterator[Violation]:
    orders, lives = _by_job(history.orders), _by_job(history.lives)
    known = set()
    for journal in history.journals:
        job_id = journal.name.removeprefix("job:")
        known.add(job_id)
        yield from _check_owners(journal)
        said = _Said()
        yield from _check_journal(journal, history.limits, said)
        yield from _check_orders(job_id, orders.get(job_id, []), said)
        yield from _check_lives(job_id, lives.get(job_id, []), said)
    for job_id in (orders.keys() | lives.keys()) - known:
        yield Violation(
            Rule.JOURNALED, job_id, "launchers were given orders, and there is no journal"
        )
    yield from _check_sound(history.cluster)
    yield from _check_cluster(history, _by_people(history.journals))


def _by_job(seen: Iterable[SeenOrder | RankLife]) -> dict[str, list]:  # type: ignore[type-arg]
    found: dict[str, list] = defaultdict(list)  # type: ignore[type-arg]
    for one in seen:
        found[one.job_id].append(one)
    return found


# Journals.


@dataclass(slots=True)
class _Said:
    """What a journal has said, by the epoch and revision of the orders that follow from it."""

    orders: dict[tuple[int, int], tuple[int, str]]  # -> attempt, controller
    since_unix_s: dict[tuple[int, int], float]  # when that was committed
    placed: dict[int, dict[str, tuple[int, ...]]]  # attempt -> node -> ranks

    def __init__(self) -> None:
        self.orders, self.since_unix_s, self.placed = {}, {}, {}

    def note(self, ledger: Ledger, committed_unix_s: float) -> None:
        at = (ledger.epoch, ledger.revision)
        self.orders[at] = (ledger.attempt, ledger.controller_id)
        self.since_unix_s.setdefault(at, committed_unix_s)


def _check_sound(journal: WrittenJournal) -> Iterator[Violation]:
    if journal.damage:
        yield Violation(Rule.SOUND, journal.name, journal.damage)
    numbers = [one.entry.number for one in journal.entries]
    if numbers != list(range(1, len(numbers) + 1)):
        yield Violation(Rule.SOUND, journal.name, "its numbers have gaps")


def _check_owners(journal: WrittenJournal) -> Iterator[Violation]:
    """The database's epochs: one writer each, and none after a higher one."""
    owners: dict[int, str] = {}
    newest = 0
    for one in journal.entries:
        about = f"record {one.entry.number}"
        owner = owners.setdefault(one.lease_epoch, one.writer)
        if owner != one.writer:
            yield Violation(
                Rule.ONE_OWNER,
                journal.name,
                f"{about} of epoch {one.lease_epoch} is by {one.writer}, others are by {owner}",
            )
        if one.lease_epoch < newest:
            yield Violation(
                Rule.ONE_OWNER,
                journal.name,
                f"{about} has epoch {one.lease_epoch}, behind one of epoch {newest}",
            )
        newest = max(newest, one.lease_epoch)


def _check_journal(journal: WrittenJournal, limits: Limits, said: _Said) -> Iterator[Violation]:
    sound = list(_check_sound(journal))
    yield from sound
    if sound:
        return
    ledger = Ledger()
    starts: dict[int, str] = {}  # the journal's own epochs
    for one in journal.entries:
        before, ledger = ledger, fold(ledger, one.entry)
        said.note(ledger, one.committed_unix_s)
        yield from _check_step(journal.name, one, before, ledger, limits)
        owner = starts.setdefault(ledger.epoch, ledger.controller_id)
        if owner != ledger.controller_id:
            text = f"epoch {ledger.epoch} belongs to {owner} and to {ledger.controller_id}"
            yield Violation(Rule.ONE_OWNER, journal.name, text)
        if isinstance(one.entry.record, AttemptStarted):
            said.placed[ledger.attempt] = {place.node: place.ranks for place in ledger.placement}
    if ledger.incident is not None:
        state = ledger.incident.state
        text = f"incident {state.incident_id} is still {state.phase.value}"
        yield Violation(Rule.ENDED, journal.name, text)


def _check_step(
    name: str, one: WrittenEntry, before: Ledger, after: Ledger, limits: Limits
) -> Iterator[Violation]:
    number = one.entry.number
    is_start = isinstance(one.entry.record, AttemptStarted)
    if after.attempt < before.attempt or (is_start and after.attempt <= before.attempt):
        text = f"record {number}: attempt {after.attempt} follows attempt {before.attempt}"
        yield Violation(Rule.MONOTONE, name, text)
    if after.epoch < before.epoch:
        text = f"record {number}: epoch {after.epoch} follows epoch {before.epoch}"
        yield Violation(Rule.MONOTONE, name, text)
    spent = after.spent
    for what, used, most in (
        ("restarts", after.restarts, limits.restarts_max),
        ("restarts without progress", after.restarts_without_progress, limits.no_progress_any_max),
        ("restarts of one cause without progress", spent.of_one_cause, limits.no_progress_max),
    ):
        if used > most and is_start:
            text = f"record {number}: {used} {what}, {most} are allowed"
            yield Violation(Rule.BUDGET, name, text)


# Launchers.


def _check_orders(job_id: str, orders: list[SeenOrder], said: _Said) -> Iterator[Violation]:
    owners: dict[int, str] = {}
    newest: dict[tuple[int, int], int] = {}  # epoch and revision -> attempt
    for order in orders:
        at = (order.epoch, order.revision)
        owner = owners.setdefault(order.epoch, order.controller_id)
        if owner != order.controller_id:
            text = f"epoch {order.epoch} orders by {owner} and by {order.controller_id}"
            yield Violation(Rule.ONE_OWNER, job_id, text)
        written = said.orders.get(at)
        if written != (order.attempt, order.controller_id):
            yield Violation(
                Rule.JOURNALED,
                job_id,
                f"{order.node} was ordered attempt {order.attempt} by epoch {order.epoch}, revision "
                f"{order.revision} of {order.controller_id}; the journal has {written}",
            )
        elif order.at_unix_s < said.since_unix_s[at]:
            text = f"{order.node} was ordered attempt {order.attempt} before that was committed"
            yield Violation(Rule.JOURNALED, job_id, text)
        placed = said.placed.get(order.attempt, {}).get(order.node, ())
        if order.ranks and order.ranks != placed:
            text = f"{order.node} was ordered ranks {order.ranks} of attempt {order.attempt}, the journal has {placed}"
            yield Violation(Rule.JOURNALED, job_id, text)
        if newest.setdefault(at, order.attempt) != order.attempt:
            text = f"epoch {order.epoch}, revision {order.revision} orders two attempts"
            yield Violation(Rule.MONOTONE, job_id, text)
    for (before, attempt), (after, following) in pairwise(sorted(newest.items())):
        if following < attempt:
            text = (
                f"attempt {following} is ordered by {after}, behind attempt {attempt} by {before}"
            )
            yield Violation(Rule.MONOTONE, job_id, text)


def _check_lives(job_id: str, lives: list[RankLife], said: _Said) -> Iterator[Violation]:
    started: set[tuple[str, int]] = set()
    running: list[RankLife] = []
    for life in sorted(lives, key=lambda one: one.began_unix_s):
        about = f"attempt {life.attempt} on {life.node}"
        if (life.node, life.attempt) in started:
            yield Violation(Rule.STARTED_ONCE, job_id, f"{about} was started twice")
        started.add((life.node, life.attempt))
        if life.node not in said.placed.get(life.attempt, {}):
            yield Violation(Rule.JOURNALED, job_id, f"{about} runs, and no record places it there")
        running = [
            one
            for one in running
            if one.ended_unix_s is None or one.ended_unix_s > life.began_unix_s
        ]
        for other in running:
            if other.attempt != life.attempt:
                text = f"{about} starts while attempt {other.attempt} runs on {other.node}"
                yield Violation(Rule.ALONE, job_id, text)
            elif not set(other.ranks).isdisjoint(life.ranks):
                text = f"{about} starts ranks {life.ranks}, of which some run on {other.node}"
                yield Violation(Rule.ALONE, job_id, text)
        running.append(life)


# The cluster.


def _by_people(journals: Iterable[WrittenJournal]) -> set[str]:
    """Return the incidents that people asked for, and the jobs for which they approved a plan: no budget refuses those."""
    found = set()
    for journal in journals:
        for one in journal.entries:
            record = one.entry.record
            if isinstance(record, IncidentOpened) and record.failure.finding.is_persons:
                found.add(record.incident_id)
            if isinstance(record, PersonActed) and record.command.act is PersonAct.APPROVE:
                found.add(journal.name.removeprefix("job:"))
    return found


def _check_cluster(history: History, by_people: set[str]) -> Iterator[Violation]:
    """Budgets in every hour and day by the database's clock, wherever these begin."""
    journal, limits = history.cluster, history.limits
    spent = [
        (one.committed_unix_s, one.entry.record)
        for one in journal.entries
        if isinstance(one.entry.record, Spent)
    ]
    seen: set[tuple[str, str, int]] = set()
    for at_s, record in spent:
        key = (record.job_id, record.incident_id, record.try_number)
        if key in seen:
            yield Violation(Rule.BUDGET, journal.name, f"{key} was spent twice")
        seen.add(key)
        if record.incident_id in by_people or record.job_id in by_people:
            continue
        stops = sum(
            other.stops_training
            and other.incident_id not in by_people
            and other.job_id not in by_people
            for when_s, other in spent
            if at_s - HOUR_S + _SLACK_S < when_s <= at_s
        )
        if record.stops_training and stops > limits.stops_per_hour_max:
            text = f"{stops} training jobs were stopped within an hour, {limits.stops_per_hour_max} are allowed"
            yield Violation(Rule.BUDGET, journal.name, text)
        moves = sum(
            bool(other.nodes)
            and other.job_id == record.job_id
            and at_s - DAY_S + _SLACK_S < when_s <= at_s
            for when_s, other in spent
        )
        is_bounded = record.stops_training and bool(record.nodes)
        if is_bounded and moves > limits.moves_per_job_day_max:
            text = f"{record.job_id} left nodes {moves} times within a day, {limits.moves_per_job_day_max} are allowed"
            yield Violation(Rule.BUDGET, journal.name, text)

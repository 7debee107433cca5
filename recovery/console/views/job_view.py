"""The state of a job and of its ranks, as the API, the commands and the console show it. Pure."""

from collections.abc import Mapping
from typing import Final

import msgspec

from recovery.api import wire
from recovery.api.parallel_sizes import to_wire
from recovery.console.views.checkpoint_view import view_checkpoint, view_unsaved
from recovery.console.views.state_words import STANDING, STOPPING, TRAINS, standing_of
from recovery.controller.job.watch.rank_picture import RankPicture
from recovery.journal.incident_machine import Phase
from recovery.journal.ledger import Ledger, Wish, stands_paused
from recovery.journal.limits import Policy, patience_left, restarts_left
from recovery.journal.narration.cluster_narrator import describe_now
from recovery.messages.outside import trains

UNMANAGED: Final = (
    "not managed"  # state of a job for which nothing can be decided now: its problem says why
)


def view_ranks(job_id: str, picture: RankPicture | None) -> wire.RankMap:
    """Return the ranks of a picture; None: nothing runs."""
    if picture is None:
        return wire.RankMap(job_id, 0, None, [], [], [], [], [], [], [])
    places: dict[str, int] = {}
    nodes = [places.setdefault(node, len(places)) for node in picture.nodes]
    return wire.RankMap(
        job_id,
        picture.attempt,
        picture.step_s,
        list(places),
        list(picture.ranks),
        nodes,
        list(picture.steps),
        # Neither round() nor Enum.value: of 16,000 ranks the three columns take 4 ms instead of 9.
        [None if age_s is None else (10.0 * age_s + 0.5) // 1.0 / 10.0 for age_s in picture.ages_s],
        [state._value_ for state in picture.states],
        [
            None if factor is None else (1000.0 * factor + 0.5) // 1.0 / 1000.0
            for factor in picture.factors
        ],
        list(picture.losses),
    )


def view_ledger(
    ledger: Ledger,
    job_id: str,
    name: str,
    *,
    state: str,
    owner: str = "",
    reason: str | None = None,
    problem: str | None = None,
    attributes: Mapping[str, str] | None = None,
    policy: Policy | None = None,
    now_unix_s: float | None = None,
    snapshots: wire.SnapshotView | None = None,
) -> wire.JobView:
    """Return a job as its ledger has it.

    ``policy``: its limits, for what is left of its budgets; ``now_unix_s``: for its newest checkpoint. Of an ended job that
    is not shown: its last save may be newer than what was checked beside training.
    """
    is_lost = ledger.unconfirmed is not None  # then budgets count as spent
    incident, adopted = ledger.incident, ledger.adopted
    left, patience = None, None
    if policy is not None:
        left = 0 if is_lost else restarts_left(ledger.spent, policy)
        patience = 0 if is_lost else patience_left(ledger.spent, policy)
    return wire.JobView(
        job_id=job_id,
        name=name,
        owner=owner,
        state=state,
        attempt=ledger.attempt,
        world_size=ledger.world_size,
        nodes=len(ledger.placement),
        restarts=ledger.restarts,
        restarts_in_all=ledger.restarts_in_all,
        restarts_without_progress=ledger.restarts_without_progress,
        highest_step=ledger.highest_step,
        incidents=ledger.incidents,
        incident_id=incident.state.incident_id if incident is not None else None,
        reason=reason,
        is_paused=ledger.paused_by is not None,
        problem=problem,
        attributes=dict(attributes or {}),
        restarts_left=left,
        no_progress_left=patience,
        adopted_attempt=adopted.attempt if is_lost and adopted is not None else None,
        checkpoint=None
        if now_unix_s is None or ledger.ended is not None
        else view_checkpoint(ledger, now_unix_s),
        snapshots=snapshots,
        parallel=to_wire(ledger.layout),
        unsaved=None if now_unix_s is None else view_unsaved(ledger, now_unix_s),
        fabric_probe=describe_now(ledger.probes) if ledger.slow or ledger.probes.open else "",
        down_s=None if now_unix_s is None else down_for_s(ledger, now_unix_s),
    )


def raise_highest(view: wire.JobView, step: int) -> None:
    """Take a step that the job has reached since its newest record, also for how far it is beyond its checkpoint."""
    before, view.highest_step, saved = view.highest_step, step, view.checkpoint
    if before is not None and saved is not None and saved.steps_since is not None:
        steps_since = saved.steps_since + step - before
        view.checkpoint = msgspec.structs.replace(saved, steps_since=steps_since)


def down_for_s(ledger: Ledger, now_unix_s: float) -> float | None:
    """Return for how long no rank trains: since an incident's fault, or since ranks that trained on were stopped; None: they train."""
    incident = ledger.incident
    if incident is None or incident.state.phase is Phase.RECOVERED:
        return None
    stopped_at = incident.stopped_at
    if not trains(incident.failure.finding) or (
        stopped_at is None and ledger.wish is not Wish.RANKS
    ):
        return max(0.0, now_unix_s - incident.opened_at.unix_s) + incident.fault_age_s
    return None if stopped_at is None else max(0.0, now_unix_s - stopped_at.unix_s)


def script_of(program: str) -> str:
    """Return the script's name in ``NAME:CONTENT`` of `recovery.launcher.ranks.command.program_of`."""
    return program.rpartition(":")[0]


def state_of(ledger: Ledger) -> str:
    """Return how a job stands that has not ended. While an incident is open the job's word is the incident's."""
    if ledger.closing is not None:
        return STOPPING
    incident = ledger.incident
    if incident is not None and incident.state.phase is not Phase.RECOVERED:
        return standing_of(incident.state.phase, waits=incident.waits is not None).value
    if ledger.start_waits is not None:
        return "waiting"
    if stands_paused(ledger):
        return STANDING
    return TRAINS if ledger.wish is Wish.RANKS else "starting"


def reason_of(ledger: Ledger, name: str) -> str | None:
    """Return how the job ends or ended, what it is recovered from, or why it does not train."""
    outcome = ledger.ended if ledger.closing is None else ledger.closing.outcome
    if outcome is not None:
        return outcome.reason
    if ledger.incident is not None:
        summary = ledger.incident.failure.finding.summary
        waits = ledger.incident.waits
        return summary if waits is None else f"{summary}; waits: {waits[1]}"
    if ledger.start_waits is not None:
        return ledger.start_waits.reason
    if stands_paused(ledger):
        return f"not training: {ledger.paused_by} left it stopped (rankmend resume --job {name})"
    if ledger.unconfirmed is not None:
        return f"{ledger.unconfirmed}; budgets count as spent until `rankmend reset-budgets`"
    return None

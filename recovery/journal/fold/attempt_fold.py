"""What the records of an attempt, from its start to its end, change in the ledger. Pure."""

from collections.abc import Mapping
from typing import Final

from recovery.journal.attempt_records import (
    Adopted,
    AttemptAbandoned,
    AttemptEnded,
    AttemptHeard,
    AttemptResult,
    AttemptStarted,
    AttemptVerified,
    Cause,
    CheckpointPutBack,
    CheckpointSeen,
    Choice,
    Milestone,
    Placement,
    RelativeMilestone,
    RestoreDamaged,
    SavesMissing,
    StandKind,
    StandStill,
    StartWaits,
)
from recovery.journal.fold.budget_fold import (
    RESTARTS,
    replace,
    with_first_step,
    with_progress,
    with_restart,
    with_step,
    without_last,
    without_restore,
    without_spent,
)
from recovery.journal.fold.node_fold import joined_member
from recovery.journal.ledger import Ledger, Reach, UnsavedNow, Wish, farther, is_farther

_PUT_BACKS_MAX: Final = 64  # nodes; at most 8 are journaled for an attempt
_SPOILED_MAX: Final = 256
_DAMAGED_MAX: Final = 16  # restores that proved damaged; their snapshots are passed over
_RENDEZVOUS_MAX: Final = 256  # attempts ago: each since then was proved gone before the next
_BASES_MAX: Final = 16  # checkpoints whose farthest relative step is remembered


def fold_attempt_started(record: AttemptStarted, ledger: Ledger) -> Ledger:
    before = _begin_run(ledger, record) if record.choice.is_new_run else ledger
    if record.cause not in RESTARTS:  # a person may have mended the script
        before = replace(before, start_failures=(), not_loaded=(), chooses_itself=False)
    after = with_restart(_with_newer_base(before, record), record)
    path, begins_at = record.choice.restored_path, record.choice.begins_at
    highest = after.highest_step
    if begins_at is not None and ledger.is_comparable:
        highest = max(begins_at, -1 if highest is None else highest)
    base, reaches = record.choice.identity, dict(after.reaches)
    after = replace(
        after,
        attempt=record.attempt,
        started=record,
        is_attempt_open=True,
        has_lost_lease=False,
        is_verified=False,
        is_resumed=False,
        has_ordered=True,
        has_advanced=False,
        highest_step=highest,
        is_base_known=base in reaches,
        reaches=_kept({**reaches, base: reaches.get(base, Reach())}),
        wish=Wish.RANKS,
        revision=ledger.number,
        placement=record.placement,
        world_size=sum(len(place.ranks) for place in record.placement) or ledger.world_size,
        nodes=tuple(place.node for place in record.placement) or ledger.nodes,
        started_number=ledger.number,
        finder=None,
        finders=(),
        fence_waits=(),
        start_waits=None,
        start_approved_by=None,
        slow={},
        goes_back=None,
        leaves_damaged=None,
        standing=None,
        continued=(),
        continued_number=0,
        spoiled=(*ledger.spoiled, *record.choice.spoiled)[-_SPOILED_MAX:],
    )
    if record.rendezvous is not None:
        met = (record.rendezvous.address, record.rendezvous.port)
        after = replace(after, rendezvous_used=_with_met(ledger, met))
    return after if path is None else replace(after, last_restore_path=path)


def _with_met(ledger: Ledger, met: tuple[str, int]) -> tuple[tuple[str, int], ...]:
    others = [item for item in ledger.rendezvous_used if item != met]
    return (*others, met)[-_RENDEZVOUS_MAX:]


def _begin_run(ledger: Ledger, record: AttemptStarted) -> Ledger:
    """Forget the run before: nothing of it is left to go on from."""
    after = replace(
        ledger,
        is_comparable=True,
        telling_ranks=frozenset(),
        highest_step=None,
        floor_step=None,
        reaches=(),
        restores=(),
        proven=(),
        last_restore_path=None,
        restorable=None,
        unsaved=None,
        base_step=None,
        memory_step=None,
        base_modified_unix_s=None,
        errors=None,
        start_failures=(),
        not_loaded=(),
        behind=None,
        rollbacks=(),
    )
    # What rankmend itself does counts against the budgets; a person's start does not.
    return after if record.cause in RESTARTS else without_spent(after)


def _with_newer_base(ledger: Ledger, record: AttemptStarted) -> Ledger:
    """Note the checkpoint that is restored; one newer than all before is progress."""
    after, choice = ledger, record.choice
    if record.is_progress:
        # Steps that compare tell the same error at the same step from whatever checkpoint. Where the step is
        # not known, a newer checkpoint says that it was another one.
        run = ledger.errors
        is_counted = ledger.is_comparable and run is not None and run.step is not None
        errors = run if is_counted else None
        after = replace(ledger, barren=(), errors=errors, start_failures=())
    made = after.stepless if not record.is_progress else without_last(after)
    if choice.snapshot is not None:
        if choice.snapshot.step > (-1 if ledger.memory_step is None else ledger.memory_step):
            after = replace(after, memory_step=choice.snapshot.step, stepless=made)
        return after
    after = replace(after, memory_since=record.attempt)
    if choice.restore is None:
        return after
    step = choice.restore.step
    if step is not None and (ledger.base_step is None or step > ledger.base_step):
        after = replace(after, base_step=step, stepless=made)
    times = [at for at in (ledger.base_modified_unix_s, record.choice.modified_unix_s) if at]
    return replace(after, base_modified_unix_s=max(times, default=None))


def fold_attempt_verified(record: AttemptVerified, ledger: Ledger) -> Ledger:
    after = replace(
        ledger,
        is_verified=True,
        is_comparable=record.is_comparable,
        telling_ranks=ledger.telling_ranks | frozenset(record.telling_ranks),
        reads_choice=ledger.reads_choice or record.resumed_age_s is not None,
        chooses_itself=ledger.chooses_itself or record.own_choice_step is not None,
    )
    if record.telling_ranks:
        after = with_first_step(after)
    is_blind = not after.telling_ranks and ledger.last_restore_path is None
    # Where neither steps nor checkpoints are seen, that it lives is all that can be.
    return with_progress(after) if is_blind and not record.is_comparable else after


def fold_milestone(record: Milestone, ledger: Ledger) -> Ledger:
    known = Reach(ledger.highest_step, ledger.floor_step)
    reached = farther(known, record.step, record.floor_step)
    after = replace(ledger, highest_step=reached.highest, floor_step=reached.floor)
    after = with_first_step(after)
    return with_step(after) if is_farther(known, reached) else after


def fold_relative_milestone(record: RelativeMilestone, ledger: Ledger) -> Ledger:
    known = ledger.reach
    reached = farther(known, record.steps, record.floor_steps)
    after = with_first_step(with_relative(ledger, reached))
    # Of the first attempt from a checkpoint its choice has decided whether that is progress.
    return with_step(after) if ledger.is_base_known and is_farther(known, reached) else after


def with_relative(ledger: Ledger, reached: Reach) -> Ledger:
    """Return the ledger in which relative steps have come so far from the newest attempt's checkpoint."""
    return replace(ledger, reaches=_kept({**dict(ledger.reaches), ledger.base: reached}))


def _kept(reaches: Mapping[str, Reach]) -> tuple[tuple[str, Reach], ...]:
    return tuple(reaches.items())[-_BASES_MAX:]


def fold_start_waits(record: StartWaits, ledger: Ledger) -> Ledger:
    return replace(ledger, start_waits=record, start_approved_by=None)


def fold_checkpoint_seen(record: CheckpointSeen, ledger: Ledger) -> Ledger:
    after = replace(ledger, restorable=record)
    return (
        replace(after, saved_number=ledger.number, unsaved=None)
        if _is_save(record, ledger)
        else after
    )


def _is_save(record: CheckpointSeen, ledger: Ledger) -> bool:
    """Return whether the job has saved this one: not the one it began from, nor an older one that is left."""
    began = None if ledger.started is None else ledger.started.choice
    begun = None if began is None or began.restore is None else began.restore.path
    if began is not None and (record.path, record.modified_unix_s) == (
        begun,
        began.modified_unix_s,
    ):
        return False
    return ledger.restorable is None or record.modified_unix_s > ledger.restorable.modified_unix_s


def fold_restore_damaged(record: RestoreDamaged, ledger: Ledger) -> Ledger:
    known = (*ledger.damaged_restores, record)[-_DAMAGED_MAX:]
    return replace(ledger, damaged_restores=known, leaves_damaged=record)


def fold_saves_missing(record: SavesMissing, ledger: Ledger) -> Ledger:
    return replace(ledger, unsaved=UnsavedNow(record))


def fold_stand_still(record: StandStill, ledger: Ledger) -> Ledger:
    if record.attempt != ledger.attempt:
        return ledger
    if record.kind is StandKind.ENDED:
        return replace(ledger, standing=None)
    after = replace(ledger, standing=record)
    if record.kind is not StandKind.CONTINUED:
        return after
    return replace(after, continued_number=ledger.number, revision=ledger.number)


def fold_checkpoint_put_back(record: CheckpointPutBack, ledger: Ledger) -> Ledger:
    others = [(node, back) for node, back in ledger.put_backs.items() if node != record.node]
    retained = others[-_PUT_BACKS_MAX + 1 :]
    return replace(ledger, put_backs=dict(retained) | {record.node: record})


def fold_attempt_abandoned(_record: AttemptAbandoned, ledger: Ledger) -> Ledger:
    return replace(ledger, wish=Wish.NOTHING, revision=ledger.number)


def fold_attempt_ended(record: AttemptEnded, ledger: Ledger) -> Ledger:
    after = replace(ledger, is_attempt_open=False)
    if record.result in (AttemptResult.DONE, AttemptResult.STOPPED):
        return without_restore(after)
    return after


def fold_attempt_heard(record: AttemptHeard, ledger: Ledger) -> Ledger:
    return replace(
        ledger,
        attempt=record.attempt,
        is_attempt_open=True,
        wish=Wish.NOTHING,
        revision=ledger.number,
        placement=tuple(Placement(node, ()) for node in record.nodes),
        started_number=ledger.number,
        has_lost_lease=False,
        fence_waits=(),
    )


def fold_adopted(record: Adopted, ledger: Ledger) -> Ledger:
    """Go on as if this journal had ordered the attempt itself."""
    # Its launchers were there before it was ordered; one that joins later is no launcher of it.
    members = dict(ledger.members)
    for joined in record.nodes:
        member = joined_member(members.get(joined.node), joined, ledger.number - 1)
        members[joined.node] = replace(member, launcher_since=ledger.number - 1, boot_since=0)
    choice = Choice(True, record.restore, "adopted: it runs", snapshot=record.snapshot)
    met = ledger.rendezvous_used
    if record.rendezvous is not None:
        met = _with_met(ledger, (record.rendezvous.address, record.rendezvous.port))
    is_same = record.attempt == ledger.attempt and ledger.adopted is not None
    after = replace(
        ledger,
        epoch=record.epoch,
        attempt=record.attempt,
        restarts=max(ledger.restarts, record.restarts),
        restarts_in_all=max(ledger.restarts_in_all, record.restarts),
        is_resumed=False,
        closing=None,
        adopted=record,
        incident_base=max(ledger.incident_base, record.epoch),
    )
    if not record.placement:  # nothing runs
        return replace(
            after, is_attempt_open=False, wish=Wish.NOTHING, revision=ledger.number, placement=()
        )
    return replace(
        after,
        started=AttemptStarted(
            record.attempt,
            Cause.TAKEOVER,
            choice,
            placement=record.placement,
            rendezvous=record.rendezvous,
        ),
        is_attempt_open=True,
        is_verified=ledger.is_verified and is_same,
        standing=ledger.standing if is_same else None,
        continued=ledger.continued if is_same else (),
        continued_number=0,
        adopted_attempt=record.attempt,
        has_lost_lease=False,
        wish=Wish.RANKS,
        revision=ledger.number,
        placement=record.placement,
        world_size=sum(len(place.ranks) for place in record.placement),
        nodes=tuple(place.node for place in record.placement),
        started_number=ledger.number,
        members=members,
        rendezvous_used=met,
        last_restore_path=ledger.last_restore_path
        if record.restore is None
        else record.restore.path,
        finder=None,
        finders=(),
        fence_waits=(),
        slow={},
    )

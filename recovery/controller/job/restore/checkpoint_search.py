"""Asks launchers what can be restored, joins their answers, and asks again where one is missing.

Nodes that see one folder share the reading. A node that fails or does not answer never blocks a recovery: the
others share its part, and in the end one node reads everything. Reads the reports and returns what is
missing; decides nothing else and does nothing.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from detectors.wording import names_in_words, reasons_in_words
from rankmend.errors import StorageError
from recovery.checkpoints.unwritable import Unwritable, UnwritableError, short_of_room
from recovery.controller.job.membership import next_finder
from recovery.controller.job.nodes import JobNodes
from recovery.controller.job.restore.checkpoint_reports import (
    divide,
    homes_of,
    join_checkpoints,
    needs_another_look,
    readers_of,
    verdicts_of,
)
from recovery.controller.job.restore.restorable import room_wanted
from recovery.journal.attempt_records import Placement
from recovery.journal.ledger import Ledger
from recovery.journal.limits import Policy
from recovery.journal.node_records import FinderChosen
from recovery.messages.candidates import CheckpointVerdict

_UNWRITABLE: Final = {unwritable.value: unwritable for unwritable in Unwritable}
_FINDERS_MAX: Final = 3  # nodes that say they can't look; then it is the storage, and the try fails
# For one of several that look, once another has answered: a launcher gives itself 30 s
# (CheckpointSettings.validate_timeout_s), and says so then.
_SHARE_S: Final = 45.0
# For the others, once one launcher speaks for the whole: they answer within it unless storage hangs.
_SETTLE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Answers:
    """What the nodes that look for checkpoints have answered."""

    told: dict[str, tuple[CheckpointVerdict, ...]]
    failed: dict[str, str]  # node, why it can't look
    late: tuple[str, ...]  # nothing is expected of them any more
    pending: tuple[str, ...]

    @property
    def missing(self) -> str:
        """Return in words who has reported nothing and why."""
        reasons = [f"{node} can't look: {why}" for node, why in self.failed.items()]
        reasons += [f"{node} has not answered" for node in self.late]
        return reasons_in_words(reasons)


@dataclass(frozen=True, slots=True)
class StillLooking:
    """Somebody looks, or nobody is there who could."""

    nodes: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return in words who looks."""
        if len(self.nodes) > 1:
            return f"{names_in_words(self.nodes)} look for checkpoints"
        return f"{self.nodes[0] if self.nodes else 'a launcher'} looks for checkpoints"


@dataclass(frozen=True, slots=True)
class CheckpointSearch:
    """The search for a checkpoint that the next attempt may begin from, as of now."""

    policy: Policy
    ledger: Ledger
    nodes: JobNodes
    placement: tuple[Placement, ...]  # of the next attempt
    usable: Collection[str]
    now_s: float
    since: Callable[..., float]  # for how many seconds the situation of this name has lasted

    def go_on(self) -> tuple[CheckpointVerdict, ...] | FinderChosen | StillLooking:
        """Return what was found, newest first, or who has to look or is looking."""
        ledger = self.ledger
        if ledger.finder is None:
            return self._ask_all() or StillLooking(())
        if self._is_on_local_disks and self._has_moved:
            return self.look_again("the nodes of the next attempt are others")
        answers = self._hear()
        if not answers.told:
            return self._ask_another(answers)
        homes = homes_of(self.placement, ledger.members)
        saved_by = ledger.world_size if ledger.attempt else 0
        joined = join_checkpoints(ledger.readers, answers.told, homes, saved_by)
        is_settled = not needs_another_look(joined)
        if answers.pending:
            has_valid = is_settled and any(verdict.is_valid for verdict in joined)
            if not has_valid or self.since("settled", ledger.finder_number) < _SETTLE_S:
                return StillLooking(answers.pending)
        elif not is_settled and len(ledger.readers) > 1 and not self._is_on_local_disks:
            return self._ask_fewer(answers)
        return joined

    def unwritable(self) -> UnwritableError | None:
        """Return why a node that looked could write nothing there, or no save after ranks that could not; or None."""
        wanted = room_wanted(self.ledger)
        for reader in self.ledger.readers:
            report = self.nodes.report_of(reader.node)
            found = None if report is None else report.found
            if found is not None and found.revision >= self.ledger.finder_number:
                why = _UNWRITABLE.get(found.unwritable)
                if why is not None:
                    return UnwritableError(why, f"{reader.node}: {found.unwritable_text}")
                free = None if found.free_bytes < 0 else found.free_bytes
                where = f"{reader.node}: the checkpoint folder"
                if wanted and (short := short_of_room(where, free, wanted)) is not None:
                    return short
        return None

    def look_again(self, reason: str) -> FinderChosen:
        """Return that those who looked do so again, or those of the placement where it is another."""
        ledger = self.ledger
        assert ledger.finder is not None, "somebody has looked"
        readers = readers_of(self.placement, ledger.members)
        if len(readers) == 1:
            return FinderChosen(ledger.finder, ledger.attempt, reason)
        return FinderChosen(readers[0].node, ledger.attempt, reason, readers)

    @property
    def _is_on_local_disks(self) -> bool:
        """Whether the nodes see different folders, so that none can read for another."""
        seen = homes_of(self.placement, self.ledger.members).values()
        return len({home.folder_id for home in seen}) > 1

    @property
    def _has_moved(self) -> bool:
        """Whether other nodes were queried than those that the next attempt will run on."""
        wanted = readers_of(self.placement, self.ledger.members)
        return {reader.node for reader in wanted} != {reader.node for reader in self.ledger.readers}

    def _hear(self) -> Answers:
        ledger = self.ledger
        reported: dict[str, tuple[CheckpointVerdict, ...]] = {}
        failed: dict[str, str] = {}
        unheard = []
        for node in (reader.node for reader in ledger.readers):
            report = self.nodes.report_of(node)
            found = None if report is None else report.found
            if found is None or found.revision < ledger.finder_number:
                unheard.append(node)
            elif found.error is not None:
                failed[node] = found.error
            elif found.empty_through < ledger.attempt:
                failed[node] = f"ranks through {found.empty_through} alone are gone"
            else:
                reported[node] = verdicts_of(found.checkpoints)
        late = [node for node in unheard if self._is_late(node, has_other=bool(reported))]
        pending = tuple(node for node in unheard if node not in late)
        return Answers(reported, failed, tuple(late), pending)

    def _is_late(self, node: str, *, has_other: bool) -> bool:
        """Return whether nothing is expected of the node; ``has_other``: another has answered."""
        waited_s = self.since("finder", self.ledger.finder_number)
        is_silent = self.now_s - self.nodes.reported_at_s(node) >= self.policy.node_silent_s
        member = self.ledger.members.get(node)
        has_ended = member is not None and member.ended_through is not None
        bound_s = _SHARE_S if has_other else self.policy.start_timeout_s
        return is_silent or has_ended or waited_s >= min(bound_s, self.policy.start_timeout_s)

    def _ask_all(self) -> FinderChosen | None:
        """Return that the nodes of the placement look, each at its share."""
        readers = readers_of(self.placement, self.ledger.members)
        if len(readers) == 1:
            return self._ask_one()
        reason = "the nodes of the next attempt"
        return FinderChosen(readers[0].node, self.ledger.attempt, reason, readers)

    def _ask_one(self) -> FinderChosen | None:
        """Return the next node to look at everything, or None where nobody else is there."""
        node = next_finder(self.placement, self.usable, self.ledger.finders)
        if node is None:
            return None
        last = self.ledger.finder
        reason = "the lowest group rank" if last is None else f"in the place of {last}"
        return FinderChosen(node, self.ledger.attempt, reason)

    def _ask_another(self, answers: Answers) -> FinderChosen | StillLooking:
        """Return who looks where nobody has found anything out."""
        if answers.pending:
            return StillLooking(answers.pending)
        if self._is_on_local_disks and answers.failed:
            raise StorageError(f"nobody can look for checkpoints: {answers.missing}")
        if self._is_on_local_disks:
            return StillLooking(answers.late)
        if not answers.failed:
            return self._ask_one() or StillLooking(answers.late)
        following = self._ask_one() if len(self.ledger.finders) < _FINDERS_MAX else None
        if following is None:
            raise StorageError(f"nobody can look for checkpoints: {answers.missing}")
        return following

    def _ask_fewer(self, answers: Answers) -> FinderChosen:
        """Return that those who have answered share what the others did not read, or that one reads all."""
        ledger = self.ledger
        left = [reader for reader in ledger.readers if reader.node in answers.told]
        is_first_time = len(ledger.readers) == len(readers_of(self.placement, ledger.members))
        if is_first_time and 1 < len(left) < len(ledger.readers):
            return FinderChosen(left[0].node, ledger.attempt, answers.missing, divide(left))
        reason = answers.missing or "not every node sees the newest one"
        return FinderChosen(left[0].node, ledger.attempt, reason)

"""Names slow ranks while the job runs: reports in, records for the journal out.

`detectors.slow.live` judges the steps of each look, `detectors.persistence` decides when looks
become a finding and when it ends. A slow rank is named and training goes on: nothing here stops
or restarts anything. For the controller's thread; what it knows may be lost and is reported again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from detectors.finding import Blame, Evidence, Finding, Kind, Severity, Symptom, SymptomKind
from detectors.persistence import Persistence, Track, look
from detectors.slow.live_look import SECTIONS, LiveLimits, SlowLook, SlowRank, StepRow
from detectors.wording import counted
from rankmend.rank_values import ToldPlace
from recovery.journal.observation_records import SlowEnded, SlowFound
from recovery.journal.records import Record
from recovery.messages.exchange import RankReport, Report

if TYPE_CHECKING:
    from detectors.slow.live import Pace, SlowLive

# A look is 2 s of steps or more, so 8 s of slowness raise a finding and 6 good ones end it:
# shorter than a person would look, longer than a flush of the page cache or a cron job's start.
RULES: Final = Persistence(bad_looks=4, of_looks=5, clear_looks=3)
# Steps of many reports become arrays at once: a report at a time costs 40 us, as much as all else
# that the controller does with it. Between two ticks 2,000 nodes tell 800; a backlog of more is taken in parts.
_ROWS_MAX: Final = 8192
_NAN: Final = float("nan")


@dataclass(slots=True)
class _Watched:
    """One rank that was slow in some look."""

    seen: SlowRank  # in the newest look in which it was slow
    track: Track
    since_s: float


class SlowRanks:
    """What is known of the slow ranks of the newest attempt."""

    def __init__(
        self, job_id: str, limits: LiveLimits | None = None, rules: Persistence = RULES
    ) -> None:
        self._job_id = job_id
        self._limits = limits
        self._rules = rules
        self._attempt = 0
        self._world_size = 0
        self._live: SlowLive | None = None
        self._watched: dict[int, _Watched] = {}
        self._nodes: dict[int, str] = {}
        self._places: dict[int, ToldPlace] = {}  # in the model's layout, by rank
        self._are_places_new = False
        self._has_pairs = False  # a rank sends to another one: perhaps it is a stage of a pipeline
        self._shared: tuple[str, ...] = ()  # the indices in which peers agree; (): all are peers
        self._rows: list[StepRow] = []  # reported, not taken yet
        self._due: list[Record] = []  # not on record yet
        self.findings: tuple[Finding, ...] = ()  # that are active now

    def begin(self, attempt: int, world_size: int) -> None:
        """Watch this attempt from now on; what was found of another one has ended with it."""
        if (attempt, world_size) == (self._attempt, self._world_size):
            return
        reason = f"attempt {self._attempt} has ended"
        self._due += [
            SlowEnded(self._attempt, rank, reason)
            for rank, watched in self._watched.items()
            if watched.track.is_active
        ]
        self._attempt, self._world_size = attempt, world_size
        self._live = None
        self._rows.clear()
        self._watched.clear()
        self._nodes.clear()
        self._places.clear()
        self._are_places_new = self._has_pairs = False
        self._shared = ()
        self.findings = ()

    @property
    def pace(self) -> "Pace | None":
        """Return how the ranks compare with each other. For any thread: it is replaced as a whole."""
        live = self._live
        return None if live is None else live.pace

    def note_report(self, report: Report) -> None:
        """Take in the steps in a report."""
        if report.attempt != self._attempt:
            return
        telling = [rank for rank in report.ranks if 0 <= rank.rank < self._world_size]
        rows = _rows(telling)
        if not rows:
            return
        if self._live is None:
            # With the first steps: numpy would make every start wait, and a script without steps needs none.
            from detectors.slow.live import SlowLive  # noqa: PLC0415

            self._live = SlowLive(self._world_size, self._limits)
        for rank in telling:
            self._nodes[rank.rank] = report.node
            if rank.place is not None and self._places.get(rank.rank) != rank.place:
                self._places[rank.rank], self._are_places_new = rank.place, True
            if rank.has_pairs and not self._has_pairs:
                self._has_pairs = True
                self._group(self._live)
        self._rows += rows
        if len(self._rows) >= _ROWS_MAX:
            self._take_rows(self._live)

    def _group(self, live: "SlowLive") -> None:
        """Compare ranks with their true peers, as far as all ranks have reported where they stand."""
        from detectors.slow.peers import (  # noqa: PLC0415
            are_alike,
            group_rows,
            place_key,
            shared_indices,
        )

        self._are_places_new = False
        shared = shared_indices(self._places, self._world_size)
        live.does_same_work = are_alike(self._places.values(), shared, has_pairs=self._has_pairs)
        if shared == self._shared:
            return
        self._shared = shared
        keys = [
            place_key(self._places[rank], shared) if shared else ()
            for rank in range(self._world_size)
        ]
        live.set_groups(group_rows(keys))

    def _take_rows(self, live: "SlowLive") -> None:
        if self._rows:
            live.add_rows(self._rows)
            self._rows.clear()

    def due(self, now_s: float) -> list[Record]:
        """Return the records due of slow ranks, again and again until `forget`.

        Nothing more is looked for until then: the journal may fail for long.
        """
        if self._live is not None:
            self._take_rows(self._live)
            if self._are_places_new:
                self._group(self._live)
            if not self._due:
                self._look(self._live, now_s)
        return list(self._due)

    def forget(self) -> None:
        """Hear that all of it is on record now."""
        self._due.clear()

    def step_factor_of(self, rank: int) -> float:
        """Return by how much a slow rank makes every step longer; 0: not known."""
        watched = self._watched.get(rank)
        return watched.seen.step_factor if watched is not None else 0.0

    def _look(self, live: "SlowLive", now_s: float) -> None:
        active = frozenset(r for r, watched in self._watched.items() if watched.track.is_active)
        seen = live.look(now_s, active)
        if seen is None:
            return
        raised = self._settle(seen, now_s)
        for rank in active:
            if rank not in self._watched:
                reason = f"no slower than its peers in the steps up to {seen.last_step}"
                self._due.append(SlowEnded(self._attempt, rank, reason))
        self._due += [self._found(item, seen, now_s) for item in raised]
        if self._due:
            self.findings = tuple(
                self._finding(watched.seen, now_s - watched.since_s)
                for watched in self._watched.values()
                if watched.track.is_active
            )

    def _settle(self, seen: SlowLook, now_s: float) -> list[_Watched]:
        """Take one look into every track; return those that have just become findings."""
        slow = {item.rank: item for item in seen.slow}
        raised = []
        for rank in self._watched.keys() | slow.keys():
            known = self._watched.get(rank)
            was_active = known is not None and known.track.is_active
            track = look(
                known.track if known else None, self._rules, is_bad=rank in slow, at_s=now_s
            )
            assert track is not None, "a rank is watched since it was slow"
            if was_active and not track.is_active:
                del self._watched[rank]
                continue
            if not track.is_active and not any(track.looks):
                self._watched.pop(rank, None)  # it was chance
                continue
            since_s = now_s if known is None else known.since_s
            watched = _Watched(slow.get(rank) or self._watched[rank].seen, track, since_s)
            self._watched[rank] = watched
            if track.is_active and not was_active:
                raised.append(watched)
        return sorted(raised, key=lambda item: -item.seen.factor)

    def _found(self, watched: _Watched, seen: SlowLook, now_s: float) -> SlowFound:
        slow = watched.seen
        finding = self._finding(slow, now_s - watched.since_s)
        text = f"judged over steps {seen.first_step} to {seen.last_step} of {seen.ranks} ranks"
        if self._shared:
            text += f"; compared with {self._peers_in_words(slow.rank)}"
        finding = replace(finding, evidence=(*finding.evidence, Evidence("step records", text)))
        return SlowFound(
            self._attempt,
            slow.rank,
            slow.section,
            slow.factor,
            slow.onset_step,
            finding,
            slow.step_factor,
            slow.is_always,
        )

    def _peers_in_words(self, rank: int) -> str:
        place = self._places[rank]
        names = [name for name in self._shared if getattr(place, name) is not None]
        indices = [(name, getattr(place, name)) for name in names]
        alike = sum(
            all(getattr(item, name) == index for name, index in indices)
            for item in self._places.values()
        )
        where = ", ".join(f"{name} {index}" for name, index in indices)
        return f"its {counted(alike - 1, 'peer')} ({where})"

    def _finding(self, slow: SlowRank, since_age_s: float) -> Finding:
        node = self._nodes.get(slow.rank, "")
        # The first step seen: after a takeover, or a restart of the controller, not the attempt's first.
        since = f"since step {slow.onset_step}"
        if slow.is_always:
            since = f"in all steps seen, from {slow.onset_step} on"
        grown = ", ".join(
            f"{section} {excess_s * 1e3:+.1f} ms"
            for section, excess_s in zip(SECTIONS, slow.excess_s, strict=True)
        )
        return Finding(
            kind=Kind.RANK_SLOW,
            severity=Severity.WARNING,
            blame=Blame.RANK,
            summary=(
                f"rank {slow.rank} on {node} is {slow.factor:.1f}x slower than its peers"
                f" {since} ({slow.section}); every step takes {slow.step_factor:.2f}x as long"
            ),
            job_id=self._job_id,
            attempt=self._attempt,
            node=node,
            ranks=(slow.rank,),
            victims=(),
            since_age_s=since_age_s,
            symptom=Symptom(SymptomKind.SLOW, slow.section),
            evidence=(
                Evidence(
                    "step records",
                    f"own work per step: {slow.own_s * 1e3:.1f} ms, median of its peers"
                    f" {slow.peers_s * 1e3:.1f} ms ({grown})",
                ),
                Evidence(
                    "step records",
                    f"in {slow.held:.0%} of the steps, {slow.sigmas:.0f} standard errors"
                    " outside the usual range",
                ),
            ),
        )


def _rows(ranks: Iterable[RankReport]) -> list[StepRow]:
    """Return the finished steps of a report."""
    return [
        (
            rank.rank,
            timing.number,
            timing.step,
            _NAN if timing.duration_s is None else timing.duration_s,
            timing.communication_s,
            timing.waited_s,
            timing.io_s,
            timing.checkpoint_s,
        )
        for rank in ranks
        for timing in rank.timings
    ]

"""From reports to records: when a slow rank is named, when it is so no more, and what is said."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from detectors.finding import Blame, Kind
from rankmend.rank_values import ToldPlace
from recovery.controller.job.controller import Controller
from recovery.controller.job.settings import JobSettings
from recovery.controller.job.watch.slow_ranks import SlowRanks
from recovery.journal.observation_records import SlowEnded, SlowFound
from recovery.journal.records import Entry, Record
from recovery.messages.codec import decode_report, encode_message
from recovery.messages.exchange import VERSION, Endpoint, Order, RankReport, Report, StepTiming
from recovery.service.metrics.measures import Measures
from tests.support.clocks import FakeClock
from tests.support.controller_bench import FakeJournal

STEP_S = 0.2
REPORT_STEPS = 5
SETTINGS = JobSettings("job-1", "sim", "0", nodes_min=2, nodes_max=2, slots=2)
PORTS = {0: Endpoint("n0", 1000), 1: Endpoint("n1", 1001)}  # where the attempt can meet


@dataclass
class SimNodes:
    """Two nodes of two ranks in step, that report over the wire every second."""

    watch: "SlowRanks | ThroughController" = field(default_factory=lambda: SlowRanks("job-1"))
    attempt: int = 1
    step: int = 0
    now_s: float = 0.0
    has_pairs: bool = False
    stage_factor: float = 1.0  # the work of ranks 2 and 3 against that of 0 and 1
    places: tuple[ToldPlace | None, ...] = (None,) * 4
    is_journaled: bool = True  # what is due

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(3)
        self.start(1)

    def start(self, attempt: int) -> None:
        self.attempt, self.step = attempt, 0
        self.waited_s = np.zeros(4)
        self.io_s = np.zeros(4)
        self.watch.begin(attempt, 4)

    def run(self, reports: int, *, slow: int | None = None, factor: float = 1.6) -> list[Record]:
        records: list[Record] = []
        for _ in range(reports):
            timings: list[list[StepTiming]] = [[], [], [], []]
            for _step in range(REPORT_STEPS):
                self.step += 1
                own_s = STEP_S * np.exp(0.02 * self.random.standard_normal(4))
                own_s[2:] *= self.stage_factor
                io_s = 0.1 * own_s
                if slow is not None:
                    io_s[slow] += (factor - 1) * STEP_S
                    own_s[slow] += (factor - 1) * STEP_S
                duration_s = float(own_s.max()) + 0.01
                self.now_s += duration_s
                self.waited_s += duration_s - own_s
                self.io_s += io_s
                for rank in range(4):
                    timings[rank].append(self.timing(rank, duration_s))
            for node in (0, 1):
                self.watch.note_report(self.report(node, timings))
            records += self.watch.due(self.now_s)
            if self.is_journaled:
                self.watch.forget()
        return records

    def timing(self, rank: int, duration_s: float) -> StepTiming:
        return StepTiming(
            number=self.step,
            step=self.step + 200,
            age_s=0.1,
            compute_s=0.0,
            communication_s=float(self.waited_s[rank]),
            io_s=float(self.io_s[rank]),
            checkpoint_s=0.0,
            waited_s=float(self.waited_s[rank]),
            duration_s=duration_s,
        )

    def report(self, node: int, timings: list[list[StepTiming]]) -> Report:
        ranks = tuple(
            RankReport(
                rank=rank,
                local_rank=rank % 2,
                pid=100 + rank,
                process_state="S",
                timings=tuple(timings[rank]),
                has_pairs=self.has_pairs,
                place=self.places[rank],
            )
            for rank in (2 * node, 2 * node + 1)
        )
        report = Report(
            version=VERSION,
            node=f"n{node}",
            boot_id="boot",
            job_id="job-1",
            revision=1,
            attempt=self.attempt,
            ranks=ranks,
            empty_through=0,
            launcher_id=f"n{node}-launcher",
            slots=2,
            rendezvous=PORTS[node],
        )
        return decode_report(encode_message(report))


def test_slow_rank_is_named_once_with_node_section_factor_and_onset() -> None:
    nodes = SimNodes()
    assert nodes.run(30) == []

    records = nodes.run(60, slow=3)

    assert len(records) == 1
    found = records[0]
    assert isinstance(found, SlowFound)
    assert (found.rank, found.section, found.attempt) == (3, "io", 1)
    assert found.factor == pytest.approx(1.6, rel=0.05)
    assert abs(found.onset_step - 351) <= 2
    finding = found.finding
    assert (finding.kind, finding.blame, finding.ranks) == (Kind.RANK_SLOW, Blame.RANK, (3,))
    assert finding.node == "n1"
    assert finding.summary.startswith(
        f"rank 3 on n1 is 1.6x slower than its peers since step {found.onset_step} (io)"
    )
    assert [one.ranks for one in nodes.watch.findings] == [(3,)]


def test_rank_that_is_well_again_is_said_to_be_after_three_good_looks() -> None:
    nodes = SimNodes()
    nodes.run(30)
    nodes.run(30, slow=3)

    records = nodes.run(20)

    assert [type(record) for record in records] == [SlowEnded]
    assert nodes.watch.findings == ()


def test_slowness_of_a_few_seconds_names_nobody() -> None:
    nodes = SimNodes()
    nodes.run(30)

    assert nodes.run(4, slow=2) + nodes.run(30) == []


def test_what_could_not_be_journaled_is_due_again_and_no_more_is_made_of_it() -> None:
    nodes = SimNodes()
    nodes.run(30)
    nodes.is_journaled = False

    due = nodes.run(60, slow=3)
    nodes.run(60)

    assert len(due) > 1
    assert set(map(id, due)) == {id(due[0])}
    assert nodes.watch.due(nodes.now_s) == due[:1]
    nodes.is_journaled = True
    assert [type(record) for record in nodes.run(20)] == [SlowFound, SlowEnded]


class ThroughController:
    """Stands where the watch stands, and has a controller ask it."""

    def __init__(self, clock: FakeClock, journal: FakeJournal) -> None:
        self.clock = clock
        self.control = Controller(journal, self, None, None, None, clock, SETTINGS)
        self.control.start()

    def send(self, order: Order) -> None:
        self.attempt = order.attempt

    def begin(self, _attempt: int, _world_size: int) -> None:
        return

    def note_report(self, report: Report) -> None:
        self.control.handle_report(report)

    def due(self, now_s: float) -> list[Record]:
        self.clock.time_s = now_s
        self.control.tick()
        return []

    def forget(self) -> None:
        return


def test_a_rank_that_is_found_slow_while_the_disk_is_full_is_on_record_once_it_is_not() -> None:
    clock = FakeClock()
    journal = FakeJournal(clock)
    through = ThroughController(clock, journal)
    nodes = SimNodes(through, now_s=clock.time_s)
    nodes.attempt = 0  # it joins first
    nodes.run(1)
    nodes.start(through.attempt)
    nodes.run(30)

    journal.is_failing = True
    nodes.run(60, slow=3)
    journal.is_failing = False
    nodes.run(10, slow=3)

    (found,) = [one.record for one in journal.entries if isinstance(one.record, SlowFound)]
    assert found.rank == 3


def test_finding_ends_with_its_attempt_and_the_next_attempt_is_judged_afresh() -> None:
    nodes = SimNodes()
    nodes.run(30)
    nodes.run(30, slow=1)

    nodes.start(2)
    ended = nodes.run(1)

    assert [(record.attempt, record.rank) for record in ended if isinstance(record, SlowEnded)] == [
        (1, 1)
    ]
    assert nodes.run(30) == []
    assert [type(record) for record in nodes.run(30, slow=1)] == [SlowFound]


def test_reports_of_another_attempt_or_of_unknown_ranks_change_nothing() -> None:
    nodes = SimNodes()
    nodes.watch.begin(7, 4)

    assert nodes.run(60, slow=1) == []


def test_ranks_that_pair_up_may_differ_from_the_start() -> None:
    apart, alike = SimNodes(has_pairs=True), SimNodes()

    assert apart.run(60, slow=3) == []
    assert [type(record) for record in alike.run(60, slow=3)] == [SlowFound]


def test_a_controller_that_takes_over_says_from_which_step_on_it_has_seen_a_slow_rank() -> None:
    nodes = SimNodes()
    nodes.run(60, slow=3)
    nodes.watch = SlowRanks("job-1")  # another controller's
    nodes.watch.begin(1, 4)

    (found,) = nodes.run(60, slow=3)

    assert isinstance(found, SlowFound)
    assert (found.is_always, found.onset_step >= 500) == (True, True), (
        "60 reports of 5 steps before"
    )
    seen = f"slower than its peers in all steps seen, from {found.onset_step} on (io)"
    assert seen in found.finding.summary


STAGES = tuple(ToldPlace(dp=rank % 2, pp=rank // 2) for rank in range(4))


def test_a_stage_that_is_heavier_by_design_is_not_slow_and_a_slow_rank_in_a_light_one_is() -> None:
    balanced = SimNodes(has_pairs=True, stage_factor=1.5, places=STAGES)
    uneven = SimNodes(has_pairs=True, stage_factor=1.5, places=STAGES)

    assert balanced.run(60) == []
    (found,) = uneven.run(60, slow=1, factor=1.4)

    assert isinstance(found, SlowFound)
    assert (found.rank, found.is_always) == (1, True), "it never reaches the heavy stage"
    assert found.factor == pytest.approx(1.4, rel=0.05)
    assert "compared with its 1 peer (pp 0)" in found.finding.evidence[-1].text


def test_controller_counts_ranks_called_slow_by_section() -> None:
    nodes, measures = SimNodes(), Measures()
    nodes.run(30)
    job = SimpleNamespace(job_id="job-1", clock=SimpleNamespace(now_s=lambda: nodes.now_s))

    for number, record in enumerate(nodes.run(30, slow=2), 1):
        measures.entry(job, Entry(number, 0.0, nodes.now_s, "boot", record))

    assert b'rankmend_controller_slow_ranks_total{section="io"} 1.0' in measures.render()

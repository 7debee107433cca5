"""The controller's series of a job's checkpoints and of the phases of a recovery."""

import re
from dataclasses import replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from recovery.api.wire import UnsavedView
from recovery.journal.attempt_records import AttemptStarted, AttemptVerified, Placement
from recovery.journal.records import Entry
from recovery.messages.exchange import SnapshotPoint
from recovery.service.metrics.measures import Measures
from recovery.service.roles import Role
from recovery.service.tokens import Tokens, make_token
from tests.support.agent import FakeClock
from tests.support.checkpoint_views import SNAPSHOTS, VIEW
from tests.support.goodput_jobs import RECOVERY


def values(measures: Measures) -> dict[str, float]:
    """Return the series of the job, each without its job_id."""
    text = measures.render().decode().replace('{job_id="j"}', "")
    text = text.replace('job_id="j",', "").replace(',job_id="j"', "")
    found = re.findall(
        r'^rankmend_controller_((?:checkpoint|failure|restorable|snapshot|unsaved)_[\w{}="]+) (\S+)$',
        text,
        re.M,
    )
    return {name: float(value) for name, value in found}


def test_checkpoint_has_its_series_and_what_is_unknown_has_none() -> None:
    measures = Measures()

    measures.note_checkpoint("j", msgspec.structs.replace(VIEW, read_bytes_per_s=None))

    assert values(measures) == {
        "checkpoint_age_seconds": 180.0,
        'restorable_age_seconds{tier="checkpoint"}': 180.0,
        "checkpoint_interval_seconds": 720.0,
        "checkpoint_best_interval_seconds": 580.0,
        "checkpoint_stall_seconds": 14.4,
        "checkpoint_save_seconds": 30.0,
        "checkpoint_write_bytes_per_second": 70e6,
        "failure_interval_seconds": 11_520.0,
        'checkpoint_cost_ratio{part="stalls"}': 0.02,
        'checkpoint_cost_ratio{part="recomputed"}': 0.031,
        'checkpoint_cost_ratio{part="restarts"}': 0.0078,
    }


def test_series_end_where_nothing_can_be_restored_any_more() -> None:
    measures = Measures()
    measures.note_checkpoint("j", VIEW)

    measures.note_checkpoint("j", None)

    assert values(measures) == {}


def test_job_has_its_series_while_it_saves_nothing_and_none_without_a_folder() -> None:
    measures = Measures()
    view = UnsavedView("nothing_found", 3700.0, "/shared/ckpt", "", "nothing has been saved")

    measures.snapshots.note_unsaved("j", view)
    assert values(measures) == {'unsaved_seconds{cause="nothing_found"}': 3700.0}

    measures.snapshots.note_unsaved("j", msgspec.structs.replace(view, cause="none_valid"))
    assert values(measures) == {'unsaved_seconds{cause="none_valid"}': 3700.0}

    measures.snapshots.note_unsaved("j", UnsavedView("no_folder", None, "", "", "no folder"))
    assert values(measures) == {}


def test_what_ranks_keep_in_memory_has_its_series_until_they_keep_nothing() -> None:
    measures = Measures()

    measures.snapshots.note("j", SNAPSHOTS)

    assert values(measures) == {
        'restorable_age_seconds{tier="memory"}': 1.25,
        "snapshot_held_bytes": 8e9,
        "snapshot_copied_bytes": 0.0,
        "snapshot_stall_seconds": 0.05,
        "snapshot_interval_seconds": 5.0,
        "snapshot_best_interval_seconds": 40.0,
    }
    measures.snapshots.note("j", msgspec.structs.replace(SNAPSHOTS, age_s=None, best=None))
    assert values(measures).keys() == {
        "snapshot_held_bytes",
        "snapshot_copied_bytes",
        "snapshot_stall_seconds",
        "snapshot_interval_seconds",
    }
    measures.snapshots.note("j", None)
    assert values(measures) == {}


@pytest.mark.parametrize(
    ("snapshot", "tier"),
    [(SnapshotPoint(1, 100), "memory"), (None, "checkpoint")],
    ids=["memory", "checkpoint"],
)
def test_steps_lost_are_counted_by_what_was_restored(
    snapshot: SnapshotPoint | None, tier: str
) -> None:
    measures = Measures()
    job: Any = SimpleNamespace(job_id="j", clock=FakeClock())

    for number, (at_s, record) in enumerate(RECOVERY, start=1):
        told = record
        if isinstance(record, AttemptStarted):
            told = replace(record, choice=replace(record.choice, snapshot=snapshot))
        measures.entry(job, Entry(number, 5000.0 + at_s, at_s, "boot-1", told))

    text = measures.render().decode()
    assert re.findall(
        r"^rankmend_controller_steps_lost_(?:count|sum)(.* [1-9].*)$", text, re.M
    ) == [
        f'{{tier="{tier}"}} 1.0',
        f'{{tier="{tier}"}} 20.0',
    ]


def test_gpu_time_of_a_recovered_incident_is_counted_by_its_cause() -> None:
    measures = Measures()
    job: Any = SimpleNamespace(job_id="j", clock=FakeClock())
    placed = (Placement("n1", (0, 1, 2)), Placement("n2", (3, 4, 5)))

    for number, (at_s, record) in enumerate(RECOVERY, start=1):
        told = replace(record, placement=placed) if isinstance(record, AttemptStarted) else record
        measures.entry(job, Entry(number, 5000.0 + at_s, at_s, "boot-1", told))

    text = measures.render().decode()
    assert re.findall(r"^rankmend_controller_gpu_seconds_lost_total(.* [1-9].*)$", text, re.M) == [
        '{cause="rank_failed"} 45.0'  # 7.5 s on 6 ranks
    ]


def test_phases_that_were_observed_are_counted_and_others_have_no_sample() -> None:
    measures = Measures()
    job: Any = SimpleNamespace(job_id="j", clock=FakeClock())
    bare = AttemptVerified(2, True, (0,), first_step_age_s=1.0, first_step=101)

    for number, (at_s, record) in enumerate(RECOVERY, start=1):
        told = bare if isinstance(record, AttemptVerified) else record
        measures.entry(job, Entry(number, 5000.0 + at_s, at_s, "boot-1", told))

    pattern = r'^rankmend_controller_recovery_phase_seconds_(sum|count)\{phase="(\w+)"\} (\S+)$'
    found = re.findall(pattern, measures.render().decode(), re.M)
    observed = {phase for part, phase, value in found if part == "count" and float(value)}
    assert {
        phase: float(value) for part, phase, value in found if part == "sum" and phase in observed
    } == {
        "detect": 0.5,
        "decide": 0.25,
        "fence": 0.75,
        "retries": 0.0,
        "prepare": 0.125,
        "first_step": 5.875,
    }


def test_counters_of_incidents_are_zero_before_the_first_so_that_prometheus_sees_it() -> None:
    text = Measures().render().decode()

    for series in (
        'incidents_total{cause="rank_failed",outcome="recovered"}',
        'incidents_opened_total{cause="rank_hung"}',
        'gpu_seconds_lost_total{cause="device"}',
        'slow_ranks_total{section="compute"}',
        'recovery_phase_seconds_count{phase="fence"}',
        'steps_lost_count{tier="memory"}',
    ):
        assert f"rankmend_controller_{series} 0.0\n" in text


def test_tokens_that_end_are_shown_until_they_are_replaced() -> None:
    ends = datetime(2027, 1, 1, tzinfo=timezone.utc)
    _text, ending = make_token("alice", [Role.LAUNCH], expires=ends)
    _text, endless = make_token("bob", [Role.LAUNCH])
    measures = Measures()
    name = "rankmend_controller_token_expiry_timestamp_seconds"
    labels = {"token": ending.id, "subject": "alice"}

    measures.take_tokens(Tokens([ending, endless]))

    assert measures.registry.get_sample_value(name, labels) == ends.timestamp()
    shown = [sample for family in measures.registry.collect() for sample in family.samples]
    assert len([sample for sample in shown if sample.name == name]) == 1

    measures.take_tokens(Tokens([endless]))

    assert measures.registry.get_sample_value(name, labels) is None

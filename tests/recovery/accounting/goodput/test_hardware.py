"""Failures, MTBF and MTTR by the kind of hardware of the accused node."""

from dataclasses import replace

import pytest

from recovery.accounting.goodput.figures import figures_of
from recovery.accounting.goodput.timeline import TRAINING, TimePart
from recovery.accounting.goodput.totals import MODELS_MAX, HardwareTotals, add_hardware
from recovery.journal.attempt_records import AttemptStarted, Placement
from recovery.journal.node_records import Joined, NodesJoined
from recovery.messages.exchange import NodeKinds
from tests.support.goodput_jobs import BEGIN, FAILED, Timed, time_of

H100 = NodeKinds("NVIDIA H100 80GB HBM3", "MT4129", "Supermicro SYS-821GE")
H200 = NodeKinds("NVIDIA H200", "MT4129", "Supermicro SYS-821GE")


def joined(**kinds: NodeKinds) -> Timed:
    nodes = tuple(
        Joined(node, f"launcher-{node}", "boot-1", 2, kinds=kind) for node, kind in kinds.items()
    )
    return 0.5, NodesJoined(nodes)


def on_two_nodes(records: tuple[Timed, ...]) -> tuple[Timed, ...]:
    placed = (Placement("n1", (0, 1)), Placement("n2", (2, 3)))
    return tuple(
        (at_s, replace(record, placement=placed) if isinstance(record, AttemptStarted) else record)
        for at_s, record in records
    )


def test_failure_counts_for_the_hardware_of_the_accused_node_and_training_for_all() -> None:
    records = on_two_nodes((*BEGIN, *FAILED))
    accused = next(
        record.failure.finding.node for _at_s, record in records if hasattr(record, "failure")
    )
    other = "n1" if accused == "n2" else "n2"
    job = time_of(records[0], joined(**{accused: H200, other: H100}), *records[1:], now_s=1500.0)

    found = figures_of([job]).by_hardware

    hit, spared = found["gpu", H200.gpu], found["gpu", H100.gpu]
    trained_s = sum(
        span.device_s
        for span in job.spans
        if span.part in {*TRAINING, TimePart.CHECKPOINT, TimePart.UNFINISHED}
    )
    assert (hit.failures, spared.failures) == (1, 0)
    assert hit.device_s == spared.device_s == pytest.approx(trained_s / 2)
    assert hit.mtbf_device_s == pytest.approx(trained_s / 2)
    assert (hit.mttr_s, spared.mttr_s, spared.mtbf_device_s) == (7.5, None, None)
    assert found["nic", "MT4129"].device_s == pytest.approx(trained_s)
    assert found["nic", "MT4129"].failures == 1


def test_job_whose_launchers_told_no_hardware_has_none() -> None:
    assert figures_of([time_of(*BEGIN, *FAILED, now_s=1500.0)]).by_hardware == {}


def test_models_are_bounded_and_the_rest_is_counted_together() -> None:
    found: dict[tuple[str, str], HardwareTotals] = {}

    add_hardware(found, ((("gpu", f"model {n}"), HardwareTotals(failures=1)) for n in range(200)))

    assert len(found) == MODELS_MAX + 1
    assert found["gpu", "other"].failures == 200 - MODELS_MAX

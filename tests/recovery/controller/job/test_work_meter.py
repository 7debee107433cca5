"""The work of an attempt, by the reports of its launchers."""

from recovery.controller.job.watch.meters import WorkMeter
from recovery.journal.attempt_records import WorkSeen
from recovery.messages.exchange import VERSION, RankReport, RankWork, Report

H100 = "NVIDIA H100 80GB HBM3"


def report(*flops: float, attempt: int = 1, devices: tuple[str, ...] = (H100, H100)) -> Report:
    ranks = tuple(
        RankReport(number, number, 10, "R", work=RankWork(one, one * 2, one * 3, "bf16", device))
        for number, (one, device) in enumerate(zip(flops, devices, strict=False))
    )
    return Report(VERSION, "n0", "boot", "job-1", 1, attempt, ranks, 0)


def meter_at(*reports: tuple[float, Report]) -> WorkMeter:
    meter = WorkMeter()
    meter.begin(1)
    for at_s, one in reports:
        meter.note_report(one, at_s)
    return meter


def test_work_counts_from_where_it_was_first_heard() -> None:
    meter = meter_at((100.0, report(5, 5)), (104.0, report(15, 25)), (105.0, report(15, 25)))

    assert meter.take(106.0) == WorkSeen(1, 4.0, 2.0, 2, 30.0, 60.0, 90.0, "bf16", H100)
    assert meter.take(107.0) is None

    meter.note_report(report(16, 26), 108.0)

    assert meter.take(108.0) == WorkSeen(1, 4.0, 0.0, 2, 2.0, 4.0, 6.0, "bf16", H100)


def test_devices_of_several_kinds_have_no_common_name() -> None:
    meter = meter_at((100.0, report(5, 5)), (104.0, report(15, 25, devices=(H100, "other"))))

    seen = meter.take(104.0)

    assert seen is not None
    assert (seen.data_type, seen.device) == ("bf16", "")


def test_reports_of_another_attempt_and_too_short_times_count_nothing() -> None:
    meter = meter_at(
        (100.0, report(5, 5)), (100.5, report(6, 6)), (190.0, report(99, 99, attempt=2))
    )

    assert meter.take(200.0) is None
    assert meter_at().take(200.0) is None

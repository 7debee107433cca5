"""What counts against a node: the table, the kernel's line, the day, and jobs of two scripts."""

from dataclasses import replace

import pytest

from detectors.finding import (
    HOST_ENDED,
    HOST_SILENT,
    Blame,
    Finding,
    Kind,
    Severity,
    Symptom,
    SymptomKind,
)
from detectors.node.charges import (
    CHARGES,
    DAY_S,
    Beside,
    ChargeKind,
    NodeCharge,
    PastCharge,
    Weight,
    is_of_device,
    is_other_program,
    judge_charge,
    read_crash_library,
    weigh,
)

NOW_S = 1_800_000_000.0
WEEK_S = 7 * DAY_S
KILLED = Finding(
    kind=Kind.RANK_FAILED,
    severity=Severity.CRITICAL,
    blame=Blame.RANK,
    summary="rank 3 failed: SIGKILL",
    job_id="j",
    attempt=1,
    node="n2",
    ranks=(3,),
    victims=(),
    since_age_s=0.0,
    symptom=Symptom(SymptomKind.KILLED, "SIGKILL"),
)
CHARGE = NodeCharge(
    "n2", ChargeKind.PROGRAM, "j", "j-1", "a file is missing", "rank_failed", "exception:FileNotFoundError", "a.py:1", True
)  # fmt: skip
OTHER = PastCharge(
    NOW_S - 60, "k", "k-1", ChargeKind.PROGRAM, "exception:FileNotFoundError", "b.py:2", True
)


def of(kind: SymptomKind, **changes: object) -> Finding:
    return replace(KILLED, symptom=Symptom(kind, "x"), **changes)  # type: ignore[arg-type]


def test_every_kind_of_evidence_has_its_row() -> None:
    assert set(CHARGES) == set(ChargeKind)
    assert all(row.reason and row.source for row in CHARGES.values())


def test_every_symptom_is_weighed() -> None:
    kinds = {symptom: weigh(of(symptom), ("n2",)) for symptom in SymptomKind}

    assert {symptom for symptom, kind in kinds.items() if CHARGES[kind].weight is Weight.ONE} == {
        SymptomKind.DEVICE, SymptomKind.SLOW, SymptomKind.NUMBERS, SymptomKind.HOST, SymptomKind.ALERT,
    }  # fmt: skip


@pytest.mark.parametrize(
    "symptom",
    [SymptomKind.KILLED, SymptomKind.CRASHED, SymptomKind.KERNEL_FAULT, SymptomKind.HUNG],
)
def test_a_signal_a_fault_or_a_hang_counts_only_with_evidence_beside_it(
    symptom: SymptomKind,
) -> None:
    alone, beside = (weigh(of(symptom), ("n2",), Beside(has_alert=told)) for told in (False, True))

    assert CHARGES[alone].weight is not Weight.ONE
    assert (beside, CHARGES[beside].weight) == (ChargeKind.BESIDE, Weight.ONE)


def test_a_device_that_is_missing_counts_only_with_evidence_beside_it() -> None:
    missing = of(SymptomKind.DEVICE)

    alone, beside = (
        weigh(missing, ("n2",), Beside(has_alert=told, is_own_word=False)) for told in (False, True)
    )

    assert (alone, beside) == (ChargeKind.GPU_PROGRAM, ChargeKind.BESIDE)


def test_an_error_of_code_gains_nothing_from_an_alert_beside_it() -> None:
    found = weigh(of(SymptomKind.EXCEPTION, blame=Blame.PROGRAM), ("n2",), Beside(has_alert=True))

    assert found is ChargeKind.PROGRAM


def test_ranks_of_two_nodes_accuse_neither_and_a_silent_host_is_one() -> None:
    host = replace(of(SymptomKind.HOST), symptom=HOST_SILENT, kind=Kind.HOST)

    assert weigh(of(SymptomKind.DEVICE), ("n2", "n3")) is ChargeKind.SPREAD
    assert weigh(host, ("n2", "n3")) is ChargeKind.HOST
    assert weigh(replace(host, symptom=HOST_ENDED), ("n2",)) is ChargeKind.ENDED


def test_a_signal_that_a_person_sends_shows_nothing_of_a_node() -> None:
    asked = of(SymptomKind.KILLED, blame=Blame.USER)

    assert weigh(asked, ("n2",), Beside(has_alert=True)) is ChargeKind.PERSON


SEGFAULT = (
    "python3[4711]: segfault at 10 ip 00007f0c1d2e sp 00007ffd error 4 in {}[7f0c1d000000+1c2000]"
)


@pytest.mark.parametrize(
    ("line", "library"),
    [
        (f"<6>[81.5] {SEGFAULT.format('libcuda.so.535.104.05')}", "libcuda.so.535.104.05"),
        ("traps: pt_main_thread[4711] general protection fault ip:7f1 sp:7f2 error:0 in libcuda.so.550.54.14[7f0000+100]", "libcuda.so.550.54.14"),
        ("python3[4711]: unhandled exception: DABT (lower EL), ESR 0x92000006, level 2 in libmlx5.so.1.24.44.0[ffff+1000]", "libmlx5.so.1.24.44.0"),
        ("python3[4711]: segfault at 0 ip 0000000000000000 sp 00007ffd error 14", ""),
        ("nvidia-modeset: loading in libcuda.so", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_the_library_of_a_crash_is_read_from_the_kernels_line(line: str, library: str) -> None:
    assert read_crash_library([line], {4711}) == library


def test_a_line_about_another_process_says_nothing_of_this_one() -> None:
    assert read_crash_library([SEGFAULT.format("libcuda.so.535.104.05")], {12}) == ""
    assert read_crash_library([SEGFAULT.format("libcuda.so.535.104.05")]) == "libcuda.so.535.104.05"


@pytest.mark.parametrize(
    ("library", "is_devices"),
    [
        ("libcuda.so.1", True),
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.535.104.05", True),
        ("libnvidia-ml.so.535.104.05", True),
        ("libamdhip64.so.6.0.60002", True),
        ("libmlx5.so.1.24.44.0", True),
        ("libnccl.so.2.27.3", False),
        ("libcudnn_ops.so.9", False),
        ("libcublas.so.12.4.5.8", False),
        ("libcudart.so.12", False),
        ("libtorch_cuda.so", False),
        ("libc.so.6", False),
        ("libpython3.11.so.1.0", False),
        ("python3.11", False),
        ("", False),
    ],
)
def test_only_what_comes_with_a_driver_is_a_devices_library(library: str, is_devices: bool) -> None:
    assert is_of_device(library) is is_devices


def test_one_job_and_one_kind_of_evidence_count_once_a_day() -> None:
    charge = replace(CHARGE, kind=ChargeKind.DEVICE, incident_id="j-2")
    past = PastCharge(NOW_S - DAY_S + 1, "j", "j-1", ChargeKind.DEVICE)

    within = judge_charge(charge, (past,), (), NOW_S, WEEK_S)
    a_day_later = judge_charge(charge, (past,), (), NOW_S + 1, WEEK_S)
    of_another_kind = judge_charge(
        replace(charge, kind=ChargeKind.HOST), (past,), (), NOW_S, WEEK_S
    )
    of_another_job = judge_charge(replace(charge, job_id="k"), (past,), (), NOW_S, WEEK_S)

    assert (within.counts, within.kind) == (False, ChargeKind.DEVICE)
    assert within.reason == "this job has counted for the same cause within a day"
    assert (a_day_later.counts, of_another_kind.counts, of_another_job.counts) == (True, True, True)


def test_the_same_incident_counts_and_is_no_news() -> None:
    charge = replace(CHARGE, kind=ChargeKind.KILLED)
    past = PastCharge(NOW_S, "j", "j-1", ChargeKind.DEVICE)

    counted = judge_charge(charge, (past,), (), NOW_S, WEEK_S)

    assert (counted.counts, counted.is_new, counted.kind) == (True, False, ChargeKind.DEVICE)


def test_the_same_class_of_error_in_another_script_counts() -> None:
    counted = judge_charge(CHARGE, (), (OTHER,), NOW_S, WEEK_S)

    assert (counted.counts, counted.kind) == (True, ChargeKind.SAME_ELSEWHERE)


@pytest.mark.parametrize(
    ("charge", "other"),
    [
        ({}, {"error": "exception:KeyError"}),
        ({}, {"program": "a.py:1"}),
        ({}, {"program": "a.py:2"}),
        ({}, {"program": "b.py:1"}),
        ({}, {"program": ""}),
        ({"program": ""}, {}),
        ({}, {"is_here_alone": False}),
        ({"is_here_alone": False}, {}),
        ({}, {"job_id": "j"}),
        ({}, {"unix_s": NOW_S - WEEK_S - 1}),
        ({"error": ""}, {"error": ""}),
    ],
)
def test_an_error_counts_nothing_where_two_jobs_prove_nothing(
    charge: dict[str, object], other: dict[str, object]
) -> None:
    mine, theirs = replace(CHARGE, **charge), replace(OTHER, **other)  # type: ignore[arg-type]

    counted = judge_charge(mine, (), (theirs,), NOW_S, WEEK_S)

    assert (counted.counts, counted.kind) == (False, ChargeKind.PROGRAM)
    assert counted.reason == "an error of code or data, from one job"


def test_scripts_differ_by_name_and_content() -> None:
    assert is_other_program("a.py:1", "b.py:2")
    assert not is_other_program("a.py:1", "a.py:2")
    assert not is_other_program("a.py:1", "b.py:1")
    assert not is_other_program("a.py:", "b.py:2")


def test_evidence_of_a_newer_version_is_unknown_and_counts_as_it_says() -> None:
    assert ChargeKind("of_tomorrow") is ChargeKind.UNKNOWN
    assert CHARGES[ChargeKind.UNKNOWN].weight is Weight.ONE

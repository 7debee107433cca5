"""What a job's incidents count against its nodes, when the program is to blame, and a first attempt that fails by its code."""

from dataclasses import replace

import pytest

from detectors.failed.error_text import ErrorText, fingerprint
from detectors.failed.loading_error import LoadingVerdict
from detectors.finding import Blame, Symptom, SymptomKind
from detectors.node.charges import ChargeKind
from recovery.console.views.incident_view import view_incidents, view_story
from recovery.controller.job.node_charges import ChargedJob, charges_of, corrects
from recovery.controller.job.planner import plan, refuse_choice
from recovery.journal.attempt_records import (
    AttemptStarted,
    Cause,
    Choice,
)
from recovery.journal.incident_records import (
    BlameCorrected,
    Conclusion,
    IncidentOpened,
    NodesCharged,
)
from recovery.journal.ledger import StartFailure
from recovery.journal.limits import PlanStep, Policy
from recovery.journal.node_records import LeaveCause, LeaveReason
from recovery.messages.exchange import RankError, RankExit, Restore
from tests.support.controller_bench import POLICY, SETTINGS
from tests.support.controller_bench import Bench as OneNode
from tests.support.job_ledgers import FINDING, PLACEMENT, ledger
from tests.support.nodes_bench import SETTINGS as NODES_SETTINGS
from tests.support.nodes_bench import Bench, evidence, make_training

JOB = ChargedJob("job-1", "a.py:1")
LIBCUDA = "libcuda.so.535.104.05"


def charged(bench: Bench) -> list[tuple[str, ChargeKind, bool]]:
    newest = bench.records(NodesCharged)[-1]
    return [(one.node, one.kind, one.counts) for one in newest.nodes]  # type: ignore[attr-defined]


def crash(bench: Bench, name: str, library: str = "") -> None:
    node = bench.nodes[name]
    ended = RankExit(0.1, None, 11, False, False, None, (), crash_library=library)
    node.ranks = {
        rank: replace(told, process_state="", exit=ended) for rank, told in node.ranks.items()
    }


def test_a_kill_whose_sender_nobody_knows_counts_nothing_and_why_says_so() -> None:
    bench = make_training()
    bench.kill("b")

    bench.beat(5.0)

    assert charged(bench) == [("b", ChargeKind.KILLED, False)]
    assert bench.blamed == []
    opened = bench.records(IncidentOpened)[0]
    story = view_story(bench.journal.entries, "j", "n", opened.incident_id)  # type: ignore[attr-defined]
    said = [line for line in story.lines if line.kind == "nodes_charged"]  # type: ignore[union-attr]
    assert [line.text for line in said] == ["the incident counts nothing against b"]
    assert said[0].details[0].startswith("b: counts nothing: nobody knows who sent the signal")


def test_an_alert_that_comes_after_the_kill_makes_it_count() -> None:
    bench = Bench(replace(NODES_SETTINGS, hears_evidence=True))
    bench.beat(1.0)
    for step in (1, 2, 3, 4):
        bench.beat(1.0, step)
    bench.kill("b")
    bench.beat(0.5)

    bench.control.take_evidence(evidence("b", action="reset_gpu"))
    bench.beat(5.0)

    assert [(node, counts) for node, _kind, counts in charged(bench)] == [("b", True)]
    assert [node for node, _incident in bench.blamed] == ["b"]


@pytest.mark.parametrize(
    ("library", "kind", "counts"),
    [
        (LIBCUDA, ChargeKind.DEVICE_CRASH, True),
        ("libtorch_cpu.so", ChargeKind.CRASHED, False),
        ("", ChargeKind.CRASHED, False),
    ],
)
def test_a_crash_counts_where_the_kernel_names_a_devices_library(
    library: str, kind: ChargeKind, counts: bool
) -> None:
    bench = make_training()
    crash(bench, "b", library)

    bench.beat(5.0)

    assert charged(bench) == [("b", kind, counts)]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("CUDA error: uncorrectable ECC error encountered", ChargeKind.DEVICE),
        ("Failed to initialize NVML: Driver/library version mismatch", ChargeKind.DEVICE),
        ("NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus", ChargeKind.DEVICE),
        ("No CUDA GPUs are available", ChargeKind.GPU_PROGRAM),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", ChargeKind.GPU_PROGRAM),
        ("CUDA error: unknown error", ChargeKind.GPU_PROGRAM),
    ],
)
def test_only_a_devices_own_word_counts_as_the_devices(said: str, kind: ChargeKind) -> None:
    symptom = Symptom(SymptomKind.DEVICE, f"RuntimeError:{said}")
    finding = replace(FINDING, node="n1", ranks=(0,), symptom=symptom, summary=f"rank 0: {said}")
    known = ledger(finding, placement=PLACEMENT)
    failure = known.incident.last_failure  # type: ignore[union-attr]

    found = charges_of("i", failure, JOB, known, {})

    assert [one.kind for one in found] == [kind]


def test_a_node_that_the_job_leaves_because_a_person_drained_it_is_not_charged() -> None:
    finding = replace(FINDING, node="n1", ranks=(0,))
    known = ledger(finding, placement=PLACEMENT)
    failure = known.incident.last_failure  # type: ignore[union-attr]
    left = {"n2": LeaveReason(LeaveCause.HELD, "drained by ann")}

    found = charges_of("i", failure, JOB, known, left)

    assert [(one.node, one.kind) for one in found] == [
        ("n1", ChargeKind.KILLED),
        ("n2", ChargeKind.LEFT),
    ]


def test_a_node_left_for_an_alert_counts_whatever_failed() -> None:
    finding = replace(FINDING, blame=Blame.PROGRAM, symptom=Symptom(SymptomKind.EXCEPTION, "x"))
    known = ledger(finding, placement=PLACEMENT)
    failure = known.incident.last_failure  # type: ignore[union-attr]
    left = {"n1": LeaveReason(LeaveCause.ALERT, "Xid 79")}

    found = charges_of("i", failure, JOB, known, left)

    assert [(one.node, one.kind) for one in found] == [("n1", ChargeKind.ALERT)]


def test_what_a_person_has_taken_back_is_not_charged() -> None:
    known = ledger(FINDING, placement=PLACEMENT, taken_back=frozenset({"n1"}))

    assert charges_of("i", known.incident.last_failure, JOB, known, {}) == ()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("ranks", "is_alone"), [((2, 3), True), ((2,), True), ((0,), False), ((1, 2), False)]
)
def test_an_error_is_compared_where_it_is_one_nodes_alone_and_not_rank_0s(
    ranks: tuple[int, ...], is_alone: bool
) -> None:
    exception = Symptom(SymptomKind.EXCEPTION, "x")
    node = "n1" if ranks[0] < 2 else "n2"
    finding = replace(FINDING, blame=Blame.PROGRAM, symptom=exception, ranks=ranks, node=node)
    known = ledger(finding, placement=PLACEMENT)

    (found,) = charges_of("i", known.incident.last_failure, JOB, known, {})  # type: ignore[union-attr]

    assert (found.is_here_alone, found.program) == (is_alone, "a.py:1")
    assert found.error == "exception:ValueError"


# The program itself fails.


def fail_again(bench: OneNode, attempt: int) -> None:
    bench.end(0, exit_code=1)
    bench.tell(1.0)
    bench.empty()
    if attempt < 2:
        bench.run_attempt(attempt + 1)
        bench.step(10, 1)


def test_an_incident_whose_program_proves_to_fail_is_blamed_on_it_and_taken_back() -> None:
    bench = OneNode(replace(SETTINGS, policy=POLICY)).start()
    bench.tell()
    bench.run_attempt(1)
    bench.step(10, 10)

    fail_again(bench, 1)
    fail_again(bench, 2)

    (corrected,) = bench.records(BlameCorrected)
    ids = [record.incident_id for record in bench.records(IncidentOpened)]  # type: ignore[attr-defined]
    assert set(ids) == set(corrected.incident_ids)  # type: ignore[attr-defined]
    assert {view.blame for view in view_incidents(bench.journal.entries, "n")} == {"program"}


def test_a_crash_blamed_on_a_rank_shows_the_corrected_blame_and_no_charge() -> None:
    bench = make_training()
    crash(bench, "b", LIBCUDA)
    bench.beat(5.0)
    incident_id = bench.records(IncidentOpened)[0].incident_id  # type: ignore[attr-defined]
    entries = list(bench.journal.entries)
    before = view_incidents(entries, "n")[0]

    bench.control._situation.record(BlameCorrected((incident_id,), Blame.PROGRAM, "again"))
    after = view_incidents(list(bench.journal.entries), "n")[0]

    assert (before.blame, [one.counts for one in before.charges]) == ("rank", [True])
    assert (after.blame, after.blamed_before) == ("program", "rank")
    assert [(one.counts, one.reason) for one in after.charges] == [(False, "taken back: again")]


@pytest.mark.parametrize("symptom", [SymptomKind.STORAGE, SymptomKind.SERVICE])
def test_storage_and_services_stay_nobodys_fault_however_often_they_end_a_job(
    symptom: SymptomKind,
) -> None:
    known = ledger(replace(FINDING, blame=Blame.NOBODY, symptom=Symptom(symptom, "x")))
    failure = known.incident.last_failure  # type: ignore[union-attr]

    assert corrects(Conclusion.PROGRAM_FAILS, failure, known, "i-2", "again") is None
    assert corrects(Conclusion.NOTHING, failure, ledger(), "i-2", "again") is None


def test_where_nothing_was_counted_and_the_program_is_blamed_there_is_nothing_to_correct() -> None:
    finding = replace(FINDING, blame=Blame.PROGRAM, symptom=Symptom(SymptomKind.PROGRAM, "x"))
    known = ledger(finding)
    failure = known.incident.last_failure  # type: ignore[union-attr]

    assert corrects(Conclusion.PROGRAM_FAILS_AT_START, failure, known, "inc-1", "a typo") is None


# A first attempt.

NAME = RankError("NameError", "name 'prnt' is not defined", "NameError: name 'prnt' is not defined")
KEY = RankError("KeyError", "'text'", "KeyError: 'text'")
FROM_60 = Choice(True, Restore("/c/60", 60), "whole")
FROM_ZERO = Choice(True, None, "no folder", has_folder=False)


def ends(
    error: RankError,
    *,
    symptom: SymptomKind = SymptomKind.PROGRAM,
    choice: Choice = FROM_ZERO,
    cause: Cause = Cause.FIRST,
    ranks: tuple[int, ...] = (),
    step: int | None = None,
    tells: bool = True,
    **changes: object,
) -> Conclusion:
    """Return what the planner concludes of a first attempt's end."""
    detail = fingerprint(ErrorText(error.type_name, error.message, ""))
    finding = replace(
        FINDING, blame=Blame.PROGRAM, symptom=Symptom(symptom, detail), ranks=ranks, victims=()
    )
    known = ledger(finding, step=step, world_size=4, started=AttemptStarted(3, cause, choice))
    incident = known.incident
    assert incident is not None
    failure = replace(incident.last_failure, error=error)
    known = replace(
        known,
        incident=replace(incident, failure=failure, last_failure=failure),
        telling_ranks=frozenset({0, 1}) if tells else frozenset(),
    )
    known = replace(known, **changes)  # type: ignore[arg-type]
    made = plan(finding, known, Policy(), None)
    if made.step is PlanStep.ESCALATE:
        return made.concludes
    refused = refuse_choice(finding, known, Policy(), choice)
    return Conclusion.PROGRAM_FAILS_AT_START if refused else Conclusion.NOTHING


def of(type_name: str, message: str) -> RankError:
    return RankError(type_name, message, f"{type_name}: {message}")


@pytest.mark.parametrize(
    ("error", "symptom"),
    [
        (NAME, SymptomKind.PROGRAM),
        (of("SyntaxError", "invalid syntax"), SymptomKind.PROGRAM),
        (of("TypeError", "f() got an unexpected keyword argument 'lr'"), SymptomKind.PROGRAM),
        (of("AttributeError", "module 'torch' has no attribute 'foo'"), SymptomKind.PROGRAM),
        (of("ModuleNotFoundError", "No module named 'einops'"), SymptomKind.EXCEPTION),
        (of("ImportError", "cannot import name 'foo' from 'bar'"), SymptomKind.EXCEPTION),
        (KEY, SymptomKind.EXCEPTION),
        (of("ValueError", "batch_size should be a positive integer"), SymptomKind.EXCEPTION),
        (of("AssertionError", ""), SymptomKind.EXCEPTION),
        (of("omegaconf.errors.ConfigAttributeError", "Key 'lr' is not in struct"), SymptomKind.EXCEPTION),
        (of("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (8x128 and 64x10)"), SymptomKind.EXCEPTION),
        (of("RuntimeError", "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"), SymptomKind.EXCEPTION),
        (RankError("", "train.py: error: unrecognized arguments: --lrr 3", "train.py: error: unrecognized arguments: --lrr 3"), SymptomKind.EXCEPTION),
    ],
)  # fmt: skip
def test_a_first_attempt_that_fails_by_its_code_on_every_rank_ends_the_job(
    error: RankError, symptom: SymptomKind
) -> None:
    assert ends(error, symptom=symptom) is Conclusion.PROGRAM_FAILS_AT_START


@pytest.mark.parametrize(
    "error",
    [
        of("ImportError", "libcudart.so.12: cannot open shared object file: No such file or directory"),
        of("ImportError", "/opt/flash_attn.so: undefined symbol: _ZN3c104cuda9SetDeviceEi"),
        of("ImportError", "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found"),
        of("OSError", "libcusparse.so.12: cannot open shared object file"),
        of("FileNotFoundError", "[Errno 2] No such file or directory: '/data'"),
        of("PermissionError", "[Errno 13] Permission denied: '/data'"),
        of("TimeoutError", "timed out"),
        of("ConnectionRefusedError", "[Errno 111] Connection refused"),
        of("RuntimeError", "CUDA unknown error - this may be due to an incorrectly set up environment"),
        of("RuntimeError", "Failed to initialize NumPy"),
        of("RuntimeError", "No CUDA GPUs are available"),
        of("AssertionError", "CUDA is not available"),
        of("ValueError", "Connection error, and we cannot find the requested files"),
        of("ValueError", "no shards found in /mnt/data/train"),
        of("ValueError", "invalid literal for int() with base 10: ''"),
        of("IndexError", "dataset is empty"),
        of("ValueError", "num_samples should be a positive integer value, but got num_samples=0"),
        of("AssertionError", "no files match s3://bucket/run/*.tar"),
        of("KeyError", "'/data/train/index.json'"),
        RankError("ValueError", "bad", "FileNotFoundError: [Errno 2] No such file: 'x'\n\nDuring handling of the above exception, another exception occurred:\n\nValueError: bad"),
    ],
    ids=lambda error: f"{error.type_name} {error.message[:30]}",
)  # fmt: skip
def test_what_a_node_storage_or_a_service_can_cause_gets_its_second_start(error: RankError) -> None:
    assert ends(error, symptom=SymptomKind.EXCEPTION) is Conclusion.NOTHING


@pytest.mark.parametrize(
    "changes",
    [
        {"cause": Cause.INCIDENT},
        {"cause": Cause.TAKEOVER},
        {"ranks": (0,)},
        {"step": 1},
        {"tells": False, "is_verified": True},
        {"saved_number": 5, "started_number": 4},
        {"symptom": SymptomKind.DEVICE},
        {"symptom": SymptomKind.STORAGE},
        {"symptom": SymptomKind.SERVICE},
        {"symptom": SymptomKind.HOST_MEMORY},
    ],
    ids=str,
)
def test_a_typo_restarts_as_before_where_it_is_not_the_first_attempts_on_every_rank(
    changes: dict[str, object],
) -> None:
    assert ends(NAME, **changes) is Conclusion.NOTHING  # type: ignore[arg-type]


def test_a_job_of_one_rank_and_one_whose_ranks_tell_nothing_end_as_well() -> None:
    one_rank = ends(NAME, ranks=(0,), world_size=1)
    silent = ends(NAME, tells=False)
    resumed = ends(NAME, cause=Cause.RESUMED)

    assert {one_rank, silent, resumed} == {Conclusion.PROGRAM_FAILS_AT_START}


def test_of_ranks_that_tell_nothing_it_is_decided_once_nobody_writes_any_more() -> None:
    folder = replace(FROM_ZERO, has_folder=True)
    newer = replace(FROM_60, modified_unix_s=2000.0)

    assert ends(NAME, tells=False, choice=folder) is Conclusion.PROGRAM_FAILS_AT_START
    assert ends(NAME, tells=False, choice=newer) is Conclusion.NOTHING


def test_from_a_checkpoint_only_the_programs_text_ends_the_job() -> None:
    verdict = LoadingVerdict.LOADING
    loading = StartFailure(3, "/c/60", "/c/60", Symptom(), "KeyError", True, verdict, False)

    assert ends(NAME, choice=FROM_60) is Conclusion.PROGRAM_FAILS_AT_START
    assert ends(KEY, symptom=SymptomKind.EXCEPTION, choice=FROM_60) is Conclusion.NOTHING
    assert ends(NAME, choice=FROM_60, start_failures=(loading,)) is Conclusion.NOTHING

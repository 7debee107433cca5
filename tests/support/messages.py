"""A message of each kind between controller and launcher."""

from detectors.finding import Blame, Evidence, Finding, Kind, Severity
from recovery.messages import exchange
from recovery.messages.codec import symptom_of
from recovery.messages.exchange import (
    Order,
    RankError,
    RankExit,
    RankReport,
    RankStart,
    Report,
    Restore,
    StartKind,
    StepTiming,
    Stop,
)

FINDING = Finding(
    kind=Kind.HOST,
    severity=Severity.WARNING,
    blame=Blame.NOBODY,
    summary="warm",
    job_id="job",
    attempt=1,
    node="n1",
    ranks=(),
    victims=(),
    since_age_s=1.5,
    symptom=symptom_of("host:warm"),
    evidence=(Evidence("hwmon", "81 C"),),
)
REPORT = Report(
    version=1,
    node="n1",
    boot_id="boot",
    job_id="job",
    revision=4,
    attempt=2,
    ranks=(
        RankReport(
            rank=0,
            local_rank=0,
            pid=77,
            process_state="S",
            attached_age_s=9.5,
            step=12,
            step_age_s=0.25,
            steps_done=3,
            timings=(StepTiming(3, 12, 0.25, 1.0, 0.5, 0.0, 0.0),),
            numbers=(
                exchange.StepNumbers(1, 11, 2.5, 0.5),
                exchange.StepNumbers(2, 12, exchange.NotFinite.NAN, exchange.NotFinite.INFINITE),
            ),
            first_bad_loss=exchange.BadNumber(12, exchange.NotFinite.NAN),
            start=RankStart(StartKind.STANDBY, "the fork server is still importing"),
        ),
        RankReport(
            rank=1,
            local_rank=1,
            pid=78,
            process_state="",
            exit=RankExit(
                0.5, 1, None, False, False, RankError("ValueError", "bad", "Trace"), ("a", "b")
            ),
        ),
    ),
    empty_through=1,
    stop_requested=exchange.StopReason.SIGTERM,
    findings=(FINDING,),
)
ORDER = Order(
    version=1,
    job_id="job",
    revision=5,
    attempt=3,
    ranks=(0, 1),
    world_size=2,
    group_rank=0,
    group_count=1,
    stop=Stop.GRACE,
    grace_s=30.0,
    restore=Restore("/c/step-10", 10),
    restarts=2,
    restarts_max=100,
)

"""What `rankmend run` says to its user while it waits for a controller, for nodes, or as a spare."""

import ssl
from collections.abc import Callable
from dataclasses import replace

import pytest
import urllib3

from rankmend.clock import SystemClock
from recovery.api.controller_errors import (
    BusyError,
    ControllerError,
    RefusedError,
    TlsFault,
    UnreachableError,
    tls_fault_of,
)
from recovery.api.launcher_client import LauncherClient
from recovery.api.wire import Accepted, Join, JoinAnswer, Problem
from recovery.journal.job_records import JobOutcome, OutcomeKind
from recovery.launcher.membership.checkpoint_access import Storage
from recovery.launcher.membership.peer_launchers import Peers
from recovery.launcher.run.remote_link import RemoteLink, describe, hint_for, join
from recovery.messages.exchange import LauncherLine, SnapshotPoint
from tests.support.launcher_bench import order
from tests.support.service import join_of

pytestmark = pytest.mark.process

REFUSED = "c:1: Connection refused"
STRANGER = "c:1: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"


def _stranger() -> UnreachableError:
    return UnreachableError(STRANGER, tls_fault=TlsFault.UNKNOWN_AUTHORITY)


class Answers:
    """A controller that fails as it is told, and then takes the launcher in."""

    def __init__(self, *errors: ControllerError) -> None:
        self._errors = list(errors)

    def join(self, _request: Join) -> JoinAnswer:
        if self._errors:
            raise self._errors.pop(0)
        return JoinAnswer("job", is_new=True, report_s=1.0, wait_s=25.0, secret="00")


def test_what_time_does_not_heal_is_said_at_once_with_the_way_out_and_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    joined = join(Answers(_stranger(), _stranger()), join_of("n1"))

    said = capsys.readouterr().err
    assert joined.job_id == "job"
    assert said.count("waiting for the controller") == 1
    assert "give the CA of its certificate with --ca-file" in said


def test_a_controller_that_is_away_for_a_moment_is_nothing_to_speak_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    join(Answers(UnreachableError(REFUSED)), join_of("n1"))

    assert capsys.readouterr().err == ""


def test_an_outage_that_lasts_is_said_once_and_its_end_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    both = UnreachableError("a; b", problems=["a", "b"])
    other = UnreachableError("a; c", problems=["a", "c"])
    busy = BusyError("a: answers 503", status=503)
    join(Answers(both, other, both, busy, other), join_of("n1"), said_after_s=0.0)

    first, second, last = capsys.readouterr().err.splitlines()
    assert first == "rankmend: waiting for the controller: a; b"
    assert second == "rankmend: waiting for the controller: a: answers 503"
    assert last.startswith("rankmend: the controller answers after ")


def test_a_refusal_is_not_waited_out() -> None:
    refusal = RefusedError("401: no token", 401, Problem("no token"))

    with pytest.raises(RefusedError, match="no token"):
        join(Answers(refusal), join_of("n1"))


def test_a_spare_is_not_told_that_an_attempt_is_over() -> None:
    nothing = order(5)

    assert describe(nothing, is_over=False) == "attempt 1 runs no ranks on this node", (
        "it may be held back"
    )
    assert describe(nothing, is_over=True).startswith("attempt 1 is over")
    assert describe(replace(nothing, attempt=0), is_over=False).startswith("joined")


def test_node_says_that_its_ranks_begin_from_memory() -> None:
    begins = replace(order(1), ranks=(2, 3), world_size=4, snapshot=SnapshotPoint(1, 40))

    assert (
        describe(begins, is_over=False)
        == "attempt 1: ranks 2 to 3 of 4 run here, from memory at step 40"
    )
    one = replace(begins, ranks=(2,), snapshot=None)
    assert describe(one, is_over=False) == "attempt 1: rank 2 of 4 runs here, from the beginning"


class KnownPeers(Peers):
    """Peers that nobody asks."""

    def __init__(self) -> None: ...
    def note_controller(self, asked_at_s: float) -> None: ...


def make_link(
    *, nodes_max: int = 2, quiet: bool = False, prints_job: Callable[[], bool] = lambda: True
) -> RemoteLink:
    request = join_of("n1", nodes_max=nodes_max, job_id="job-1")
    storage = Storage(None, None, None, "")
    client = LauncherClient(["http://127.0.0.1:9"])
    return RemoteLink(
        *(client, request, KnownPeers(), storage, SystemClock()),
        quiet=quiet, line=4, prints_job=prints_job,
    )  # fmt: skip


LINES = [LauncherLine(4, "old"), LauncherLine(6, "decision: restart\npassed over x"),
         LauncherLine(5, "incident ab-1: rank 2 failed first")]  # fmt: skip


def test_each_line_of_the_job_is_printed_once_and_in_order_with_the_nodes_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    link = make_link()
    outcome = JobOutcome(OutcomeKind.ESCALATED, 3, "no")

    link.taken(1.0, Accepted(1, lines=LINES))
    link.taken(2.0, Accepted(1, lines=LINES))
    link.ended(outcome, [*LINES, LauncherLine(7, "gave up: no")])

    assert link.exit_code(None) == 3
    assert capsys.readouterr().err.splitlines() == [
        "rankmend: [n1] incident ab-1: rank 2 failed first",
        "rankmend: [n1] decision: restart",
        "rankmend: [n1] passed over x",
        "rankmend: [n1] gave up: no",
    ]


def test_launcher_of_a_step_prints_the_jobs_lines_only_from_when_it_is_the_one_that_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    turns = [False]
    link = make_link(prints_job=lambda: turns[-1])

    link.taken(1.0, Accepted(1, lines=LINES))
    turns.append(True)
    link.taken(2.0, Accepted(1, lines=[*LINES, LauncherLine(7, "restart 1")]))

    assert capsys.readouterr().err == "rankmend: [n1] restart 1\n"


def test_the_end_is_said_where_an_older_controller_sends_no_lines_and_a_quiet_launcher_prints_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    older, quiet = make_link(nodes_max=1), make_link(quiet=True)
    outcome = JobOutcome(OutcomeKind.ESCALATED, 3, "no", "ab-1")

    older.ended(outcome)
    older.exit_code(None)
    said = capsys.readouterr().err
    quiet.taken(1.0, Accepted(1, lines=LINES))

    assert said.startswith("rankmend: gave up: no\nrankmend: next: remove the cause")
    assert "`rankmend why ab-1`" in said
    assert capsys.readouterr().err == ""


def test_the_start_says_how_many_nodes_train_and_how_many_wait() -> None:
    begins = replace(order(1), ranks=(2, 3), world_size=4, group_count=2)

    assert describe(begins, is_over=False).endswith("from the beginning; 2 nodes train")
    begins = replace(begins, spare_count=3)
    assert describe(begins, is_over=False).endswith("; 2 nodes train, 3 wait as spares")
    spare = replace(begins, ranks=(), group_count=1, spare_count=1)
    assert describe(spare, is_over=False).endswith("this node; 1 node trains, 1 waits as a spare")


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (10, "check the clock"),
        (9, "check the clock"),
        (64, "a name that its certificate contains"),
        (62, "a name that its certificate contains"),
        (18, "--ca-file"),
    ],
)
def test_what_is_wrong_with_a_certificate_is_told_apart_by_its_code(code: int, hint: str) -> None:
    inner = ssl.SSLCertVerificationError(1, "in whatever words")
    inner.verify_code = code
    error = UnreachableError(
        "c:1: away", tls_fault=tls_fault_of(urllib3.exceptions.SSLError(inner))
    )

    assert hint in str(hint_for(error))

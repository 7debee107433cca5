"""What `rankmend run` says to its user while it waits for a controller, for nodes, or as a spare."""

import ssl
from dataclasses import replace

import pytest
import urllib3

from recovery.api.controller_errors import ControllerError, RefusedError, UnreachableError
from recovery.api.tls_fault import TlsFault, tls_fault_of
from recovery.api.wire import Join, JoinAnswer, Problem
from recovery.messages.exchange import SnapshotPoint
from recovery.run.joining import hint_for, join
from recovery.run.remote_link import describe
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


def test_a_reason_that_lasts_is_said_and_said_again_when_it_changes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    both = UnreachableError("a; b", problems=["a", "b"])
    turned = UnreachableError("b; a", problems=["b", "a"])
    other = UnreachableError("a; c", problems=["a", "c"])
    join(Answers(both, turned, other), join_of("n1"), said_after_s=0.0)

    assert [line.rpartition(": ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "a; b",
        "a; c",
    ]


def test_a_refusal_is_not_waited_out() -> None:
    refusal = RefusedError("401: no token", 401, Problem("no token"))

    with pytest.raises(RefusedError, match="no token"):
        join(Answers(refusal), join_of("n1"))


def test_a_spare_is_not_told_that_an_attempt_is_over() -> None:
    nothing = order(5)

    assert "is a spare" in describe(nothing, is_over=False)
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

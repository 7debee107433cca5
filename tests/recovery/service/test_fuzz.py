"""Reports and orders that nobody means well with: the controller never fails over one, acts for no other's job, and stays bounded."""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankmend.errors import MessageError
from recovery.api.controller_errors import ConflictError, RefusedError, UnknownJobError
from recovery.messages.codec import (
    LISTS_MAX,
    NAME_CHARACTERS_MAX,
    TEXT_CHARACTERS_MAX,
    decode_order,
    decode_report,
    encode_message,
)
from recovery.messages.exchange import (
    Collected,
    Found,
    FoundCheckpoint,
    Hardware,
    HardwareSeries,
    RankError,
    RankExit,
    RankReport,
    Report,
)
from recovery.service.jobs.retained import USUAL_BYTES, Retained, Room, slim
from recovery.service.roles import Role
from recovery.service.tokens import add_token, make_token
from tests.support.eventually import DEADLINE_S
from tests.support.messages import FINDING, ORDER, REPORT
from tests.support.service import Running, Speaker, join_of, make_folder, running, two_speakers
from tests.support.service_bench import unlimited

pytestmark = pytest.mark.process

ODD: list[Any] = [
    None, True, False, 0, -1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 10**30, 0.5, -1e300, 1e308, 1e-320,
    "", "x", "\x1b[2J", "a" * 3000, "\u202e", "critical", "../../etc", "n2", [], {}, [[]], [0] * 300,
]  # fmt: skip
NUMBERS = [0, 1, 2, 3, 1000, 2**31, 2**62, 2**63 - 1]
FLOATS = [0.0, -1.0, 1e308, -1e308, 1e-320, 5.0]
WORDS = ["", "x", "n1", "n2", "\x1b[2J", "S", "Z", "1" * 50, "a" * 3000]
MORE = {
    "findings": (FINDING,),
    "found": Found(0, (FoundCheckpoint("/c/1", 10, "file", 100, 1e9, True, ""),)),
    "hardware": Hardware(1, (HardwareSeries("m", (("a", "b"),), ((1.0, 2.0),)),)),
    "collected": Collected("x-1", 1, "/f", 3, 100, 1.0, ("n",)),
    "fence_attempt": 0,
    "unreachable": ("n2",),
}


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    if isinstance(value, dict):
        for key, one in value.items():
            yield from places(one, (*at, key))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from places(one, (*at, number))


def mutate(message: Any, random: Random) -> Any:
    """Return the message with some values of the same type in the place of others, or of any type."""
    message, is_typed = copy.deepcopy(message), random.random() < 0.8
    for _ in range(random.choice([1, 1, 2, 4])):
        *way, last = random.choice([one for one in places(message) if one != ("job_id",)])
        holder = message
        for part in way:
            holder = holder[part]
        value = holder[last]
        if not is_typed and random.random() < 0.2:
            del holder[last]
        elif not is_typed:
            holder[last] = copy.deepcopy(random.choice(ODD))
        elif isinstance(value, bool) or value is None:
            holder[last] = not value if value is not None else random.choice([0, 1.5, "x"])
        elif isinstance(value, int):
            holder[last] = random.choice([*NUMBERS, value + 1, value - 1])
        elif isinstance(value, float):
            holder[last] = random.choice(FLOATS)
        elif isinstance(value, str):
            holder[last] = random.choice(WORDS)
        elif isinstance(value, list) and value:
            value.append(copy.deepcopy(random.choice(value)))
    return message


def tried(decode: Callable[[bytes], Any], body: bytes) -> tuple[Any, str]:
    """Return the message, or why it was refused."""
    try:
        return decode(body), ""
    except MessageError as error:
        return None, str(error)


@given(st.randoms(use_true_random=False))
def test_report_that_was_tampered_with_is_a_report_or_refused(random: Random) -> None:
    base = json.loads(encode_message(replace(REPORT, **MORE)))  # type: ignore[arg-type]
    body = json.dumps(mutate(base, random)).encode()

    report, refusal = tried(decode_report, body)

    assert len(refusal) < 10_000
    if report is not None:
        assert decode_report(encode_message(report)) == report


@given(st.randoms(use_true_random=False))
def test_order_that_was_tampered_with_is_an_order_or_refused(random: Random) -> None:
    body = json.dumps(mutate(json.loads(encode_message(ORDER)), random)).encode()

    order, refusal = tried(decode_order, body)

    assert len(refusal) < 10_000
    if order is not None:
        assert len(set(order.ranks)) == len(order.ranks) <= order.world_size
        assert all(0 <= rank < order.world_size for rank in order.ranks)


@pytest.mark.parametrize(
    "body",
    [b"[" * 200_000, b'{"version":' * 5000, b"\xff", b"", b"null", b"NaN", b'{"version":1e999}',
     b'{"version":1,"ranks":[{"rank":1e400}]}', b'"\\ud800"'],
)  # fmt: skip
def test_body_that_is_no_message_is_refused(body: bytes) -> None:
    for decode in (decode_report, decode_order):
        with pytest.raises(MessageError):
            decode(body)


LONG = {
    "boot_id": "x" * 20_000,
    "launcher_id": "x" * 20_000,
    "launch_error": "x" * (TEXT_CHARACTERS_MAX + 1),
    "unreachable": ("y" * 400,) * (LISTS_MAX["unreachable"] + 1),
    "findings": (replace(FINDING, summary="x" * (TEXT_CHARACTERS_MAX + 1)),),
    "ranks": tuple(RankReport(n, n, n, "S") for n in range(LISTS_MAX["ranks"] + 1)),
    "found": Found(0, (FoundCheckpoint("p" * 400, 1, "f", 1, 1.0, True, "r"),) * 65),
    "hardware": Hardware(1, (HardwareSeries("m" * (NAME_CHARACTERS_MAX + 1), (), ()),) * 40),
    "collected": Collected("x-1", 1, "f" * (TEXT_CHARACTERS_MAX + 1), 1, 1, 1.0, ()),
}


@pytest.mark.parametrize("field", LONG)
def test_field_that_is_longer_than_any_launchers_is_refused(field: str) -> None:
    report = replace(REPORT, **{field: LONG[field]})  # type: ignore[arg-type]

    with pytest.raises(MessageError, match="at most"):
        decode_report(encode_message(report))


def test_the_longest_that_launchers_send_is_taken() -> None:
    error = RankError("RuntimeError", "m" * 2000, "t" * 16_000)
    end = RankExit(0.1, 1, None, False, False, error, ("l" * 2000,) * 60)
    ranks = tuple(RankReport(n, n, n + 1, "", exit=end) for n in range(48))

    report = replace(REPORT, ranks=ranks)

    assert decode_report(encode_message(report)) == report


# Memory.


def test_subject_whose_reports_take_much_is_slimmed_and_then_gets_no_further_node() -> None:
    shares = Retained(slim_bytes=1_000_000, full_bytes=2_000_000)
    for number in range(10):
        assert shares.look("a", "j", f"n{number}", 100_000) is Room.ENOUGH
        shares.note("a", "j", f"n{number}", 100_000)

    assert shares.look("a", "j", "n10", 100_000) is Room.SLIM
    assert shares.look("a", "j", "n10", USUAL_BYTES) is Room.ENOUGH
    assert shares.look("b", "k", "n10", 100_000) is Room.ENOUGH, "another subject has its own"
    for number in range(10, 26):
        shares.note("a", "j", f"n{number}", USUAL_BYTES)
    assert shares.look("a", "j", "n99", USUAL_BYTES) is Room.NONE
    assert shares.look("a", "j", "n0", USUAL_BYTES) is Room.ENOUGH, "a node that is known is heard"
    shares.note("a", "j", "n0", 0)
    shares.keep({"k"})
    assert shares.total_bytes("a") == 0
    assert shares.look("a", "j", "n99", 100_000) is Room.ENOUGH


def test_slim_report_decides_the_same_and_is_a_fraction() -> None:
    error = RankError("RuntimeError", "m" * 2000, "t" * 16_000)
    end = RankExit(0.1, 1, None, False, False, error, ("l" * 2000,) * 60)
    full = replace(
        REPORT, ranks=tuple(RankReport(n, n, n + 1, "", exit=end) for n in range(8)), **MORE
    )  # type: ignore[arg-type]

    short = slim(full)

    assert len(encode_message(short)) < USUAL_BYTES < len(encode_message(full))
    assert (short.attempt, short.empty_through) == (full.attempt, full.empty_through)
    assert [rank.exit.exit_code for rank in short.ranks if rank.exit] == [1] * 8
    assert short.ranks[0].exit is not None
    assert short.ranks[0].exit.error is not None
    assert short.ranks[0].exit.error.type_name == "RuntimeError"


# A controller with the core, and two subjects.


@dataclass
class Scene:
    up: Running
    victim: list[Speaker]
    ours: list[Speaker]  # of the hostile subject

    def state_of_victim(self) -> Any:
        job = self.up.service.worker.jobs.running[self.victim[0].job_id]
        assert job.controller is not None
        ledger = job.controller.ledger
        return ledger.attempt, ledger.revision, ledger.incidents, sorted(ledger.members)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("fuzz") / "files"
    make_folder(folder)
    tokens = {}
    for name in ("alice", "mallory"):
        tokens[name], entry = make_token(name, [Role.LAUNCH])
        add_token(folder / "tokens.toml", entry)
    with running(folder, unlimited) as up:
        victim = two_speakers(up.client("", token=tokens["alice"]), key="victim")
        for speaker in victim:
            speaker.obey()
        ours = two_speakers(up.client("", token=tokens["mallory"]), key="ours")
        yield Scene(up, victim, ours)


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(random=st.randoms(use_true_random=False))
def test_no_report_makes_the_core_fail(scene: Scene, random: Random) -> None:
    worker, speaker = scene.up.service.worker, random.choice(scene.ours)
    job, before = worker.jobs.running[speaker.job_id], scene.state_of_victim()
    assert speaker.report is not None
    more = {name: value for name, value in MORE.items() if random.random() < 0.3}
    base = replace(speaker.report, number=speaker.report.number + 1, **more)  # type: ignore[arg-type]
    try:
        report = decode_report(
            json.dumps(mutate(json.loads(encode_message(base)), random)).encode()
        )
    except MessageError:
        return
    if report.job_id != speaker.job_id:
        return
    speaker.report = replace(speaker.report, number=base.number)

    def act() -> int:
        job.take_report(report)
        job.tick(worker._clock.now_s())
        return job.failures

    assert worker.call(act).result(DEADLINE_S) == 0, report
    assert scene.state_of_victim() == before


def test_launch_token_of_another_subject_reaches_no_foreign_job(scene: Scene) -> None:
    before, theirs = scene.state_of_victim(), scene.victim[0]
    client = scene.ours[0].client
    assert theirs.report is not None
    forged: list[Report] = [
        replace(theirs.report, number=10**6),
        replace(
            theirs.report, number=10**6, attempt=2**31 - 1, empty_through=2**31 - 1, revision=2**62
        ),
        replace(theirs.report, number=10**6, leaving=True, ranks=()),
        replace(theirs.report, number=10**6, launcher_id="another", launcher_started_s=1e300),
    ]

    for report in forged:
        with pytest.raises(UnknownJobError):
            client.report(report)
    with pytest.raises(UnknownJobError):
        client.order(theirs.job_id, "n1", theirs.launcher_id, after=0, epoch=0, wait_s=0)
    with pytest.raises(ConflictError):
        client.join(join_of("n1", key="mine", job_id=theirs.job_id))
    same_key = client.join(join_of("n1", key="victim"))
    assert same_key.job_id != theirs.job_id
    assert scene.state_of_victim() == before


def test_report_that_is_sent_again_or_of_an_earlier_number_changes_nothing(scene: Scene) -> None:
    speaker = scene.victim[0]
    assert speaker.report is not None
    old = speaker.report
    speaker.say()
    before = scene.state_of_victim()
    dead = RankExit(0.1, None, 9, False, False, None, ())
    replayed = replace(
        old, ranks=tuple(replace(rank, process_state="", exit=dead) for rank in old.ranks)
    )

    for report in (old, replayed, replayed):
        speaker.client.report(report)
    scene.up.service.worker.call(lambda: None).result(DEADLINE_S)

    assert scene.state_of_victim() == before


def test_report_for_another_job_in_the_path_of_ones_own_is_refused(scene: Scene) -> None:
    ours, theirs = scene.ours[0], scene.victim[0]
    assert theirs.report is not None
    path = f"/v1/jobs/{ours.job_id}/reports"

    with pytest.raises(RefusedError, match="differs from that of the path"):
        ours.client.request("POST", path, encode_message(replace(theirs.report, number=10**6)))

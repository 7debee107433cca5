import contextlib
import json
from dataclasses import fields, replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.failed.said_error import FailureCause, SaidAtEnd, SaidError
from rankmend.errors import MessageError
from rankmend.rank_values import ToldHidden
from recovery.messages import copying, exchange, probing
from recovery.messages.candidates import HeldPart, Share
from recovery.messages.codec import (
    MESSAGE_BYTES_MAX,
    PARTS_MAX,
    decode_order,
    decode_report,
    encode_message,
)
from recovery.messages.exchange import (
    Endpoint,
    KeptSnapshots,
    Order,
    Peer,
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
from tests.support.messages import ORDER, REPORT

ROOT = Path(__file__).parents[3]


def changed(message: Report | Order, **changes: object) -> bytes:
    value = json.loads(encode_message(message))
    for path, new in changes.items():
        *parents, last = path.split("__")
        place = value
        for parent in parents:
            place = place[int(parent) if parent.isdigit() else parent]
        place[last] = new
    return json.dumps(value).encode()


def test_messages_come_back_as_they_were() -> None:
    assert decode_report(encode_message(REPORT)) == REPORT
    assert decode_order(encode_message(ORDER)) == ORDER


def test_an_age_below_zero_is_read_as_zero_so_that_nobody_seems_to_have_moved_in_the_future() -> (
    None
):
    ended = RankExit(-0.5, 1, None, False, False, None, ())
    timing = replace(REPORT.ranks[0].timings[0], age_s=-0.02)
    ahead = replace(
        REPORT.ranks[0], step_age_s=-1e9, section_age_s=-0.1, attached_age_s=3.0, exit=ended,
        timings=(timing,),
    )  # fmt: skip

    (first, *others) = decode_report(
        encode_message(replace(REPORT, ranks=(ahead, *REPORT.ranks[1:])))
    ).ranks

    assert (first.step_age_s, first.section_age_s, first.attached_age_s) == (0.0, 0.0, 3.0)
    assert first.exit is not None
    assert (first.exit.age_s, first.timings[0].age_s) == (0.0, 0.0)
    assert first.resumed_age_s is None, "what was not told stays untold"
    assert tuple(others) == REPORT.ranks[1:]


@pytest.mark.parametrize(
    "told",
    [
        ToldHidden(works=1, works_least_s=2.0, works_most_s=1.0),
        ToldHidden(samples=1, window_s=1.0, overlap_s=2.0),
        ToldHidden(reads=1, reads_s=-1.0),
        ToldHidden(sendings=-1),
    ],
)
def test_hidden_times_that_can_not_be_are_refused(told: ToldHidden) -> None:
    rank = replace(REPORT.ranks[0], hidden=told)

    with pytest.raises(MessageError, match="hidden"):
        decode_report(encode_message(replace(REPORT, ranks=(rank,))))


def test_fields_of_a_newer_version_are_ignored() -> None:
    body = changed(REPORT, version=2, temperature_celsius=81, ranks__0__flops=5)

    assert decode_report(body) == replace(REPORT, version=2)


def test_fields_that_a_version_did_not_have_take_their_defaults() -> None:
    value = json.loads(encode_message(REPORT))
    assert "launch_error" not in value  # nor does this version send it where it has its default
    del value["findings"], value["ranks"][0]["timings"]

    decoded = decode_report(json.dumps(value).encode())

    assert decoded.findings == ()
    assert decoded.ranks[0].timings == ()


def test_an_order_of_an_older_controller_names_no_neighbours() -> None:
    peer = Peer("n2", "l2", Endpoint("10.0.0.2", 7000))
    order = replace(ORDER, neighbours=(peer,))
    value = json.loads(encode_message(order))
    assert decode_order(json.dumps(value).encode()) == order
    del value["neighbours"]

    assert decode_order(json.dumps(value).encode()).neighbours == ()


def said(cause: str) -> dict[str, object]:
    return {"error": {"cause": cause, "fingerprint": "E:x", "line": "E: x"}, "device": None}


def test_an_error_of_a_class_that_only_a_newer_version_knows_is_an_exception() -> None:
    rank = decode_report(changed(REPORT, ranks__1__exit__words=said("solar_flare"))).ranks[1]

    assert rank.exit is not None
    assert rank.exit.words == SaidAtEnd(SaidError(FailureCause.EXCEPTION, "E:x", "E: x"))


def test_a_start_that_only_a_newer_version_knows_is_unknown_and_an_older_launcher_reports_none() -> (
    None
):
    newer = decode_report(changed(REPORT, ranks__0__start={"kind": "thawed", "ms": 3})).ranks[0]
    value = json.loads(encode_message(REPORT))
    del value["ranks"][0]["start"]
    older = decode_report(json.dumps(value).encode()).ranks[0]

    assert newer.start == RankStart(StartKind.UNKNOWN)
    assert older.start is None


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"version": 3}, "version is 3, this understands 0 to 2"),
        ({"version": True}, "version is True"),
        ({"version": "1"}, "version is '1'"),
        ({"node": 5}, r"\$\.node.*it is 5"),
        ({"ranks__1__exit__words": said("stopped")}, "words of rank 1 have the cause 'stopped'"),
        ({"attempt": "2"}, r"\$\.attempt.*it is '2'"),
        ({"attempt": -1}, "attempt is -1"),
        ({"attempt": 2**63}, "attempt"),
        ({"empty_through": -5}, "empty_through is -5"),
        ({"ranks__0__pid": 1.5}, r"ranks\[0\]\.pid.*it is 1\.5"),
        ({"ranks__0__pid": -1}, "pid is -1"),
        ({"ranks__0__rank": 10**7}, "rank is 10000000"),
        ({"ranks__0__rank": 1}, "names a rank twice"),
        ({"ranks__0__step": -3}, "step is -3"),
        ({"ranks__1__exit__signal": 9}, "exit of rank 1 has not one of code and signal"),
        ({"findings__0__kind": "weather"}, "weather|kind"),
    ],
)
def test_a_report_that_does_not_fit_is_refused_with_field_and_value(
    changes: dict[str, object], complaint: str
) -> None:
    with pytest.raises(MessageError, match=complaint):
        decode_report(changed(REPORT, **changes))


SEEN = exchange.FoundCheckpoint(
    "/c/session", 10, "nvrx_local", 100, 1.0, True, "whole",
    share=Share(1, 4), parts=(HeldPart(10, 2, 2), HeldPart(10, 0, 2)),
)  # fmt: skip


def test_shares_and_parts_come_back_as_they_were() -> None:
    report = replace(REPORT, known=(SEEN,), folder_id="5f" * 16)

    assert decode_report(encode_message(report)) == report


@pytest.mark.parametrize("share", [(4, 4), (-1, 4), (0, 0)])
def test_a_share_that_there_is_not_is_refused(share: tuple[int, int]) -> None:
    body = changed(
        replace(REPORT, known=(SEEN,)), known__0__share={"number": share[0], "count": share[1]}
    )

    with pytest.raises(MessageError, match=r"known\[0\]\.share"):
        decode_report(body)


def test_a_report_of_more_parts_than_a_node_can_hold_is_refused() -> None:
    parts = tuple(HeldPart(10, rank, rank) for rank in range(PARTS_MAX + 1))

    with pytest.raises(MessageError, match=f"have {PARTS_MAX + 1} parts, at most {PARTS_MAX}"):
        decode_report(encode_message(replace(REPORT, known=(replace(SEEN, parts=parts),))))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"stop": "softly"}, "softly"),
        ({"ranks": [0, 0]}, "names a rank twice"),
        ({"ranks": [0, 2]}, "ranks is 2"),
        ({"world_size": 0}, "world_size is 0"),
        ({"group_rank": 1}, "group_rank is 1"),
        ({"grace_s": -1.0}, r"grace_s is -1\.0"),
        ({"restore__step": "ten"}, r"restore\.step.*it is 'ten'"),
    ],
)
def test_an_order_that_does_not_fit_is_refused_with_field_and_value(
    changes: dict[str, object], complaint: str
) -> None:
    with pytest.raises(MessageError, match=complaint):
        decode_order(changed(ORDER, **changes))


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"nul", b'{"version":1}', b"[" * 100_000])
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(MessageError):
        decode_report(body)
    with pytest.raises(MessageError):
        decode_order(body)


def test_a_message_that_is_too_large_is_neither_read_nor_sent() -> None:
    with pytest.raises(MessageError, match=f"at most {MESSAGE_BYTES_MAX} are read"):
        decode_report(b" " * (MESSAGE_BYTES_MAX + 1))
    with pytest.raises(MessageError, match=f"at most {MESSAGE_BYTES_MAX} are sent"):
        encode_message(replace(REPORT, launch_error="x" * MESSAGE_BYTES_MAX))


@given(st.binary(max_size=400))
def test_no_bytes_make_the_decoder_raise_anything_else(body: bytes) -> None:
    with contextlib.suppress(MessageError):
        decode_report(body)
    with contextlib.suppress(MessageError):
        decode_order(body)


@given(st.data())
def test_no_change_to_a_message_makes_the_decoder_raise_anything_else(data: st.DataObject) -> None:
    body = bytearray(encode_message(data.draw(st.sampled_from([REPORT, ORDER]))))
    for _change in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body) - 1))
        body[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))

    with contextlib.suppress(MessageError):
        decode_report(bytes(body))
    with contextlib.suppress(MessageError):
        decode_order(bytes(body))


@given(
    st.builds(
        Order,
        version=st.just(1),
        job_id=st.text(),
        revision=st.integers(0, 2**63 - 1),
        attempt=st.integers(0, 2**63 - 1),
        ranks=st.just((1, 0)),
        world_size=st.integers(2, 1000),
        group_rank=st.integers(0, 2),
        group_count=st.integers(3, 9),
        stop=st.sampled_from(Stop),
        grace_s=st.floats(0, 1e9),
        restore=st.none() | st.builds(Restore, st.text(), st.none() | st.integers(0, 2**62)),
        restarts=st.integers(0, 100),
        restarts_max=st.integers(0, 100),
    )
)
def test_any_order_comes_back_as_it_was(order: Order) -> None:
    assert decode_order(encode_message(order)) == order


@pytest.mark.parametrize(
    "message",
    [
        Report,
        RankReport,
        ToldHidden,
        RankStart,
        StepTiming,
        RankExit,
        RankError,
        Order,
        Restore,
        exchange.LauncherLine,
        exchange.Endpoint,
        exchange.Peer,
        exchange.Collected,
        exchange.RankEvidence,
        exchange.Found,
        exchange.FoundCheckpoint,
        exchange.HeldSnapshot,
        exchange.KeptSnapshots,
        exchange.CopyFaultTold,
        copying.CopyRequest,
        copying.CopyOrder,
        copying.HeldFor,
        copying.FetchOrder,
        probing.ProbeRequest,
        probing.ProbeTold,
        exchange.StepNumbers,
        exchange.BadNumber,
        Share,
        HeldPart,
    ],
)
def test_every_field_is_listed_in_the_documentation(message: type) -> None:
    text = (ROOT / "docs/reference/messages.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {message.__name__}\n")[1].split("\n## ")[0]
    listed = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]

    assert listed == [one.name for one in fields(message)]


def test_the_variables_that_an_order_sets_are_listed_in_the_documentation() -> None:
    text = (ROOT / "docs/reference/messages.md").read_text(encoding="utf-8")

    assert all(f"`{name}`" in text for name in exchange.ORDER_ENVIRONMENT)


@pytest.mark.parametrize(
    "told",
    [
        {"number": 0, "step": 1},
        {"number": 1, "step": -1},
        {"number": 1, "step": 1, "loss": "huge"},
        {"number": 1, "step": 1, "loss": True},
    ],
)
def test_impossible_numbers_are_refused(told: dict[str, object]) -> None:
    with pytest.raises(MessageError):
        decode_report(changed(REPORT, ranks__0__numbers=[told]))


def test_numbers_of_too_many_steps_are_refused() -> None:
    told = [{"number": 1, "step": 1}] * 129
    with pytest.raises(MessageError, match="rank 0 reports numbers of 129 steps, at most 128"):
        decode_report(changed(REPORT, ranks__0__numbers=told))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("count", -1),
        ("refused", -1),
        ("files", 3),
        ("files", -1),
        ("stalled_s", -0.5),
        ("stalled_s", 1e400),
    ],
)
def test_impossible_figures_of_snapshots_are_refused(field: str, value: float) -> None:
    kept = {"count": 1, "refused": 0, "stalled_s": 0.5, "files": 2}
    good = changed(REPORT, ranks__0__snapshots=kept)
    bad = changed(REPORT, ranks__0__snapshots={**kept, field: value})

    assert decode_report(good).ranks[0].snapshots == KeptSnapshots(1, 0, 0.5, 2)
    with pytest.raises(MessageError):
        decode_report(bad)


def test_rank_reports_leave_out_what_has_its_default_and_older_ones_that_do_not_are_the_same() -> (
    None
):
    told = RankReport(3, 0, 4711, "S", step=7, timings=(StepTiming(1, 7, 0.5, 1.0, 0.0, 0.0, 0.0),))

    body = msgspec.json.encode(told)
    whole = msgspec.json.encode({one.name: getattr(told, one.name) for one in fields(told)})

    assert set(msgspec.json.decode(body)) == {
        *("rank", "local_rank", "pid", "process_state", "step", "timings"),
    }
    assert len(msgspec.json.decode(whole)) == len(fields(RankReport)) > 30
    assert msgspec.json.decode(body, type=RankReport) == told
    assert msgspec.json.decode(whole, type=RankReport) == told
    assert replace(told, step=8) == RankReport(3, 0, 4711, "S", step=8, timings=told.timings)

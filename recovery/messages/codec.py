"""Reports and orders as JSON on the wire (contract 4). Fields: docs/reference/messages.md. Pure.

Every message from outside is checked for size, version and every field's type; the first that does
not fit raises `MessageError` with the field and the value. Fields that this version does not know
are ignored, and one version older and newer is understood.
"""

import re
from collections.abc import Iterator, Sized
from dataclasses import replace
from typing import Final, TypeVar

import msgspec

from detectors.failed.said_error import SAID, SaidError
from detectors.finding import Finding, Symptom, SymptomKind
from rankmend.errors import MessageError
from rankmend.hook.layout import DATA_TYPES, DEVICE_NAME_BYTES_MAX
from recovery.messages.exchange import (
    ATTEMPT_MAX,
    NUMBERS_MAX,
    VERSION,
    WITNESSES_MAX,
    Claim,
    FoundCheckpoint,
    HeldSnapshot,
    KeptSnapshots,
    Order,
    RankReport,
    Report,
)
from recovery.messages.probing import ProbeTold

_KINDS: Final = {kind.value: kind for kind in SymptomKind}
_NUMBER: Final = re.compile(r"\d+")
_FAULT_CHARACTERS_MAX: Final = 200

# enough for 72 ranks, each with traceback and last lines
MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
RANKS_MAX: Final = 1_000_000
PORT_MAX: Final = 65535
NAME_CHARACTERS_MAX: Final = 4096  # names of nodes, launchers, sections; a control group is a path
TEXT_CHARACTERS_MAX: Final = 32_768  # twice the traceback that a launcher sends
CHECKED_BYTES_MIN: Final = 16 * 1024  # smaller messages hold no long text
# Of lists in a report, twice what launchers send at most.
LISTS_MAX: Final = {
    "ranks": 1024,
    "findings": 1024,
    "unreachable": 2 * (WITNESSES_MAX + 2),  # and two neighbours
    "found.checkpoints": 64,
    "known": 64,
    "snapshots": 4096,  # three of each of 1,024 ranks
    "copies": 4096,
    "copy_faults": 128,
    "domain": 32,
    "hardware.series": 4000,
    "collected.notes": 64,
    "collected.ranks": 1024,
}
# Twice what 4 iterations of 2 sessions take with 72 ranks and 2 replicas of each part.
PARTS_MAX: Final = 4096
ADDRESS_CHARACTERS_MAX: Final = 253  # of a host name, RFC 1035
DIGEST: Final = re.compile(r"[0-9a-f]{32}")
PROBE_BYTES_MAX: Final = 1 << 20  # a verdict on 1,024 nodes takes 0.3 MB
SNAPSHOT_PARTS_MAX: Final = 32  # twice what launchers send
_INT_MAX: Final = 2**63 - 1  # what the journal and Prometheus can hold

_M = TypeVar("_M", Report, Order)
_VERSION_DECODER: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_REPORT_DECODER: Final = msgspec.json.Decoder(Report, strict=True)
_ORDER_DECODER: Final = msgspec.json.Decoder(Order, strict=True)

_AGES: Final = (
    "attached_age_s",
    "resumed_age_s",
    "first_section_age_s",
    "step_age_s",
    "section_age_s",
    "rendezvous_began_age_s",
    "rendezvous_ended_age_s",
)


def symptom_of(signature: str) -> Symptom:
    """Return the symptom of a signature; an unknown signature becomes the detail.

    Versions before record 1.3 described a failure by a signature alone, "hung:stopped" or
    "evidence:XidFatal". It is taken apart here, once, as it comes in; nothing else reads it.
    """
    word, _colon, detail = signature.partition(":")
    kind = _KINDS.get(word, SymptomKind.UNKNOWN)
    if kind is SymptomKind.UNKNOWN:
        return Symptom(kind, signature)
    return Symptom(kind, detail)


def finding_of_today(finding: Finding) -> Finding:
    """Return the finding with its symptom."""
    if finding.symptom != Symptom() or not finding.signature:
        return finding
    return replace(finding, symptom=symptom_of(finding.signature))


def report_of_today(report: Report) -> Report:
    """Return a report with the fields that older launchers did not send."""
    if report.launch_error is not None and not report.launch_fault:
        fault = _NUMBER.sub("#", report.launch_error)[:_FAULT_CHARACTERS_MAX]
        report = replace(report, launch_fault=fault)
    if all(finding.symptom != Symptom() for finding in report.findings):
        return report
    return replace(report, findings=tuple(finding_of_today(finding) for finding in report.findings))


def encode_message(message: Report | Order) -> bytes:
    """Return the wire form of a report or an order."""
    body = msgspec.json.encode(message)
    if len(body) > MESSAGE_BYTES_MAX:
        raise MessageError(
            f"{type(message).__name__}: {len(body)} bytes, at most {MESSAGE_BYTES_MAX} are sent"
        )
    return body


def decode_report(body: bytes) -> Report:
    """Return the report in ``body``, or raise MessageError with what is wrong."""
    report = _decode(body, _REPORT_DECODER, "report")
    _refuse_number("report", "attempt", report.attempt, 0)
    _refuse_number("report", "empty_through", report.empty_through, 0)
    if report.rendezvous is not None:
        _refuse_number("report", "rendezvous.port", report.rendezvous.port, 0, PORT_MAX)
    if report.peer_endpoint is not None:
        _refuse_number("report", "peer_endpoint.port", report.peer_endpoint.port, 0, PORT_MAX)
    _refuse_number("report", "revision", report.revision, 0)
    if report.line_printed is not None:
        _refuse_number("report", "line_printed", report.line_printed, 0)
    if len(body) > CHECKED_BYTES_MIN:
        _refuse_long(report)
    _refuse_number("report", "epoch", report.epoch, 0)
    if report.claim is not None:
        _refuse_impossible_claim(report.claim)
    numbers = [rank.rank for rank in report.ranks]
    if len(set(numbers)) != len(numbers):
        raise MessageError(f"report: ranks names a rank twice: {sorted(numbers)}")
    _refuse_impossible_snapshots(report)
    for rank in report.ranks:
        if not _is_plain(rank):
            _refuse_impossible_rank(rank)
    if any(map(_is_of_the_future, report.ranks)):
        report = replace(report, ranks=tuple(_of_now(rank) for rank in report.ranks))
    return report_of_today(report)


def _is_plain(rank: RankReport) -> bool:
    """Return whether a rank's report has nothing in it that could be impossible: most have not, and there are 16,000 a second."""
    return (
        0 <= rank.rank <= RANKS_MAX
        and 0 <= rank.pid <= _INT_MAX
        and 0 <= rank.steps_done <= _INT_MAX
        and (rank.step is None or 0 <= rank.step <= _INT_MAX)
        and rank.exit is None
        and rank.work is None
        and rank.hidden is None
        and not rank.numbers
        and rank.first_bad_loss is None
        and rank.first_bad_grad_norm is None
    )


def _refuse_impossible_rank(rank: RankReport) -> None:
    _refuse_impossible_numbers(rank)
    _refuse_impossible_work(rank)
    _refuse_impossible_hidden(rank)
    _refuse_number("report", "rank", rank.rank, 0, RANKS_MAX)
    _refuse_number("report", "pid", rank.pid, 0)
    _refuse_number("report", "steps_done", rank.steps_done, 0)
    if rank.step is not None:
        _refuse_number("report", "step", rank.step, 0)
    if rank.exit is not None and (rank.exit.exit_code is None) == (rank.exit.signal is None):
        raise MessageError(f"report: exit of rank {rank.rank} has not one of code and signal")
    for said in _errors_of(rank):
        if said.cause not in SAID:
            raise MessageError(
                f"report: words of rank {rank.rank} have the cause {said.cause.value!r}, "
                f"which no error has"
            )


def _is_of_the_future(rank: RankReport) -> bool:
    """Return whether an age is negative: unchanged, it would keep a rank counting as moving for long."""
    if (
        (rank.step_age_s or 0.0) < 0
        or (rank.section_age_s or 0.0) < 0
        or (rank.attached_age_s or 0.0) < 0
        or (rank.resumed_age_s or 0.0) < 0
        or (rank.first_section_age_s or 0.0) < 0
        or (rank.rendezvous_began_age_s or 0.0) < 0
        or (rank.rendezvous_ended_age_s or 0.0) < 0
        or (rank.exit is not None and rank.exit.age_s < 0)
    ):
        return True
    for timing in rank.timings:  # noqa: SIM110 - a generator takes twice as long
        if timing.age_s < 0:
            return True
    return False


def _of_now(rank: RankReport) -> RankReport:
    """Return the report with 0 instead of negative ages.

    A launcher of an older version dates a step that ends while it looks a few ms ahead.
    """
    ages = {name: max(0.0, age_s) for name in _AGES if (age_s := getattr(rank, name)) is not None}
    timings = tuple(replace(timing, age_s=max(0.0, timing.age_s)) for timing in rank.timings)
    exit_ = rank.exit and replace(rank.exit, age_s=max(0.0, rank.exit.age_s))
    return replace(rank, **ages, timings=timings, exit=exit_)


def _refuse_impossible_claim(claim: Claim) -> None:
    _refuse_number("report", "claim.attempt", claim.attempt, 0, ATTEMPT_MAX)
    _refuse_number("report", "claim.world_size", claim.world_size, 1, RANKS_MAX)
    _refuse_number("report", "claim.group_count", claim.group_count, 1, RANKS_MAX)
    _refuse_number("report", "claim.group_rank", claim.group_rank, 0, claim.group_count - 1)
    _refuse_number("report", "claim.restarts", claim.restarts, 0, ATTEMPT_MAX)
    if claim.snapshot is not None:
        _refuse_number("report", "claim.snapshot.attempt", claim.snapshot.attempt, 1, ATTEMPT_MAX)
        _refuse_number("report", "claim.snapshot.step", claim.snapshot.step, 0)
    if len(claim.peers) > WITNESSES_MAX:
        raise MessageError(f"report: claim.peers has {len(claim.peers)}, at most {WITNESSES_MAX}")
    if not 0 <= claim.contact_age_s < float("inf"):
        raise MessageError(f"report: claim.contact_age_s is {claim.contact_age_s!r}")


def _refuse_impossible_snapshots(report: Report) -> None:
    for fault in report.copy_faults:
        _refuse_number("report", "copy_faults.rank", fault.rank, 0, RANKS_MAX)
        _refuse_number("report", "copy_faults.attempt", fault.attempt, 1, ATTEMPT_MAX)
        _refuse_number("report", "copy_faults.step", fault.step, 0)
    if report.copier is not None:
        _refuse_number("report", "copier.port", report.copier.port, 1, PORT_MAX)
        if not 0 < len(report.copier.address) <= ADDRESS_CHARACTERS_MAX:
            raise MessageError(f"report: copier.address is {report.copier.address!r:.80}")
    if report.probe is not None:
        _refuse_impossible_probe(report.probe)
    for held in (*report.snapshots, *report.copies):
        _refuse_impossible_snapshot(held)
    for rank in report.ranks:
        if rank.snapshots is not None:
            _refuse_impossible_count(rank.snapshots)


def _refuse_impossible_probe(reported: ProbeTold) -> None:
    _refuse_number("report", "probe.port", reported.port, 0, PORT_MAX)
    size_bytes = len(msgspec.json.encode(reported))  # it goes into the journal
    if size_bytes > PROBE_BYTES_MAX:
        raise MessageError(f"report: probe has {size_bytes} bytes, at most {PROBE_BYTES_MAX}")


def _refuse_impossible_count(retained: KeptSnapshots) -> None:
    _refuse_number("report", "ranks.snapshots.count", retained.count, 0)
    _refuse_number("report", "ranks.snapshots.refused", retained.refused, 0)
    _refuse_number("report", "ranks.snapshots.files", retained.files, 0, 2)
    if not 0 <= retained.stalled_s < float("inf"):
        raise MessageError(f"report: ranks.snapshots.stalled_s is {retained.stalled_s!r}")


def _refuse_impossible_numbers(rank: RankReport) -> None:
    count = len(rank.numbers)
    if count > 2 * NUMBERS_MAX:
        raise MessageError(
            f"report: rank {rank.rank} reports numbers of {count} steps, at most {2 * NUMBERS_MAX}"
        )
    for reported in rank.numbers:
        _refuse_number("report", "ranks.numbers.number", reported.number, 1)
        _refuse_number("report", "ranks.numbers.step", reported.step, 0)
    for bad in (rank.first_bad_loss, rank.first_bad_grad_norm):
        if bad is not None:
            _refuse_number("report", "ranks.first_bad.step", bad.step, 0)


def _refuse_impossible_work(rank: RankReport) -> None:
    work = rank.work
    if work is None:
        return
    amounts = (work.flops, work.tokens, work.samples)
    if not all(0 <= amount < float("inf") for amount in amounts):
        raise MessageError(f"report: work of rank {rank.rank} is {amounts!r}")
    if work.data_type not in DATA_TYPES:
        raise MessageError(f"report: work of rank {rank.rank} has type {work.data_type!r:.80}")
    if len(work.device) > DEVICE_NAME_BYTES_MAX:
        raise MessageError(f"report: rank {rank.rank} has the device {work.device!r:.80}")


def _refuse_impossible_hidden(rank: RankReport) -> None:
    reported = rank.hidden
    if reported is None:
        return
    for name in ("works", "samples", "reads", "sendings"):
        _refuse_number("report", f"hidden.{name}", getattr(reported, name), 0)
    times = (reported.works_least_s, reported.works_most_s, reported.reads_s, reported.sendings_s)
    windows = (reported.overlap_s, reported.window_s)
    if not all(0 <= time_s < float("inf") for time_s in (*times, *windows)) or (
        reported.works_least_s > reported.works_most_s or reported.overlap_s > reported.window_s
    ):
        raise MessageError(f"report: hidden times of rank {rank.rank} are {(*times, *windows)!r}")


def _refuse_impossible_snapshot(held: HeldSnapshot) -> None:
    _refuse_number("report", "snapshots.sequence", held.sequence, 0)
    _refuse_number("report", "snapshots.world_size", held.world_size, 1, RANKS_MAX)
    _refuse_number("report", "snapshots.rank", held.rank, 0, held.world_size - 1)
    _refuse_number("report", "snapshots.attempt", held.attempt, 1, ATTEMPT_MAX)
    _refuse_number("report", "snapshots.step", held.step, 0)
    _refuse_number("report", "snapshots.size_bytes", held.size_bytes, 0)
    if not DIGEST.fullmatch(held.digest):
        raise MessageError(
            f"report: snapshots.digest is {held.digest!r:.80}, not 32 hexadecimal digits"
        )
    if len(held.parts) > SNAPSHOT_PARTS_MAX:
        text = f"{len(held.parts)} parts, at most {SNAPSHOT_PARTS_MAX}"
        raise MessageError(f"report: a snapshot of rank {held.rank} has {text}")
    if not 0 <= held.age_s < float("inf"):
        raise MessageError(f"report: snapshots.age_s is {held.age_s!r}")


def decode_order(body: bytes) -> Order:
    """Return the order in ``body``, or raise MessageError with what is wrong."""
    order = _decode(body, _ORDER_DECODER, "order")
    _refuse_number("order", "attempt", order.attempt, 0)
    _refuse_number("order", "epoch", order.epoch, 0)
    _refuse_number("order", "restarts", order.restarts, 0)
    _refuse_number("order", "revision", order.revision, 0)
    _refuse_number("order", "world_size", order.world_size, 1, RANKS_MAX)
    _refuse_number("order", "group_count", order.group_count, 1, RANKS_MAX)
    _refuse_number("order", "group_rank", order.group_rank, 0, order.group_count - 1)
    if not 0 <= order.grace_s < float("inf"):
        raise MessageError(f"order: grace_s is {order.grace_s!r}")
    if order.snapshot is not None:
        _refuse_number("order", "snapshot.attempt", order.snapshot.attempt, 1, ATTEMPT_MAX)
        _refuse_number("order", "snapshot.step", order.snapshot.step, 0)
    if order.rendezvous is not None:
        _refuse_number("order", "rendezvous.port", order.rendezvous.port, 1, PORT_MAX)
    for rank in order.ranks:
        _refuse_number("order", "ranks", rank, 0, order.world_size - 1)
    if len(set(order.ranks)) != len(order.ranks):
        raise MessageError(f"order: ranks names a rank twice: {order.ranks}")
    return order


def _refuse_long(report: Report) -> None:
    """Raise if a name, text or list is too long: the controller keeps each node's newest report."""
    parts = sum(len(reported.parts) for reported in _checkpoints_in(report))
    if parts > PARTS_MAX:
        raise MessageError(f"report: its checkpoints have {parts} parts, at most {PARTS_MAX}")
    for name, most in LISTS_MAX.items():
        count = len(_list_at(report, name))
        if count > most:
            raise MessageError(f"report: {name} has {count} entries, at most {most}")
    for kind, found, most in (
        ("name", _names_in(report), NAME_CHARACTERS_MAX),
        ("text", _texts_in(report), TEXT_CHARACTERS_MAX),
    ):
        longest = max(found, key=len, default="")
        if len(longest) > most:
            raise MessageError(
                f"report: a {kind} has {len(longest)} characters, at most {most}: {longest[:40]!r}..."
            )


def _list_at(report: Report, path: str) -> Sized:
    value: object = report
    for part in path.split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, tuple) else ()


def _names_in(report: Report) -> Iterator[str]:
    yield from (report.node, report.boot_id, report.job_id, report.launcher_id)
    yield report.launch_fault
    yield from report.unreachable
    for place in (report.rendezvous, report.peer_endpoint):
        if place is not None:
            yield place.address
    for rank in report.ranks:
        yield from (rank.process_state, rank.section)
        if rank.exit is not None and rank.exit.error is not None:
            yield rank.exit.error.type_name
    for finding in report.findings:
        yield from (finding.node, finding.job_id)
    if report.hardware is not None:
        for series in report.hardware.series:
            yield series.metric
            yield from (text for pair in series.labels for text in pair)
    yield report.folder_id
    yield from (report.kinds.gpu, report.kinds.nic, report.kinds.node)
    yield from report.domain
    yield from (fault.node for fault in report.copy_faults)
    for held in (*report.snapshots, *report.copies):
        yield from (text for part in held.parts for text in (part.name, part.digest))
    for reported in _checkpoints_in(report):
        yield from (reported.kind, reported.hindrance)
    if report.collected is not None:
        yield report.collected.incident_id


def _texts_in(report: Report) -> Iterator[str]:
    yield report.launch_error or ""
    for rank in report.ranks:
        yield rank.progress_error or ""
        yield rank.start.why_not_forked if rank.start else ""
        if rank.exit is not None:
            yield from rank.exit.last_lines
            if rank.exit.error is not None:
                yield from (rank.exit.error.message, rank.exit.error.traceback)
            if rank.exit.words is not None:
                yield from (*rank.exit.words.beside, rank.exit.words.exit_text)
        for said in _errors_of(rank):
            yield from (said.fingerprint, said.line)
    for finding in report.findings:
        yield from (finding.summary, finding.signature, finding.symptom.detail)
        yield from (evidence.text for evidence in finding.evidence)
    if report.found is not None:
        yield report.found.error or ""
    for reported in _checkpoints_in(report):
        yield from (reported.path, reported.reason)
    if report.hardware is not None:
        yield report.hardware.note
    if report.put_back is not None:
        yield report.put_back.path
    if report.collected is not None:
        yield from (report.collected.folder, *report.collected.notes)
        yield report.collected.output_says


def _checkpoints_in(report: Report) -> tuple[FoundCheckpoint, ...]:
    return report.known if report.found is None else (*report.known, *report.found.checkpoints)


def _errors_of(rank: RankReport) -> list[SaidError]:
    if rank.exit is None or rank.exit.words is None:
        return []
    return [said for said in (rank.exit.words.error, rank.exit.words.device) if said is not None]


def _decode(body: bytes, decoder: msgspec.json.Decoder[_M], what: str) -> _M:
    if len(body) > MESSAGE_BYTES_MAX:
        raise MessageError(f"{what}: {len(body)} bytes, at most {MESSAGE_BYTES_MAX} are read")
    try:
        message = decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        _refuse_version(_version_of(body, what), what)  # is clearer than a field that is new there
        raise MessageError(f"{what}: {error}{_value_at(body, str(error))}") from error
    _refuse_version(message.version, what)
    return message


def _version_of(body: bytes, what: str) -> object:
    try:
        return msgspec.json.decode(_VERSION_DECODER.decode(body)["version"])
    except KeyError:
        raise MessageError(f"{what}: no version: {body[:80]!r}") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MessageError(f"{what}: no JSON object: {error}: {body[:80]!r}") from error


def _refuse_version(version: object, what: str) -> None:
    if isinstance(version, bool) or not isinstance(version, int) or abs(version - VERSION) > 1:
        raise MessageError(
            f"{what}: version is {version!r}, this understands {VERSION - 1} to {VERSION + 1}"
        )


def _value_at(body: bytes, complaint: str) -> str:
    """Return the value at the path that msgspec names (``... - at `$.ranks[0].pid```)."""
    path = complaint.rpartition("`$")[2].rstrip("`")
    try:
        value = msgspec.json.decode(body)
        for part in path.replace("[", ".[").split(".")[1:]:
            value = value[int(part[1:-1])] if part.startswith("[") else value[part]
    except (msgspec.DecodeError, ValueError, LookupError, TypeError, RecursionError):
        return ""
    return f", it is {value!r:.80}"


def _refuse_number(what: str, name: str, value: int, least: int, most: int = _INT_MAX) -> None:
    if not least <= value <= most:
        raise MessageError(f"{what}: {name} is {value}, not {least} to {most}")

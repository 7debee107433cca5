"""The protocol by which a launcher shows the node agent its ranks' progress files and findings.

A Unix socket of packets (SOCK_SEQPACKET: one message is one packet, and the end of the launcher
is the end of the connection). A message is an `Offer` as JSON and, in the same packet, one
descriptor a rank (SCM_RIGHTS) in the order of its ranks, or, after an offer, a `Told` of the same
job with no descriptor, or the figures of its checkpoints (`rankmend.checkpoint_figures`). Each message replaces the one before of
its kind; an offer of no ranks withdraws the ranks, closing the connection withdraws everything. The agent answers nothing: it closes a connection
that it refuses. docs/operate/agent.md describes the format.

Standard library only: the launcher loads this.
"""

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rankmend.checkpoint_figures import CheckpointFigures, decode_figures
from rankmend.errors import SourceError

VERSION: Final = 1
RANKS_MAX: Final = 253  # descriptors in one packet: SCM_MAX_FD, linux/include/net/scm.h
MESSAGE_BYTES_MAX: Final = 32768  # 253 ranks need 16 kB
JOB_NAME_CHARS_MAX: Final = 128
FINDINGS_MAX: Final = 128  # per job on one node; 200 bytes each
CULPRITS_MAX: Final = 8  # named in one finding; more are no fault of single ranks
KINDS: Final = frozenset({"rank_slow", "rank_hung", "rank_failed"})
SECTIONS: Final = frozenset({"", "compute", "communication", "io"})

_NUMBER_MAX = 2**32 - 1
_CAUSE = re.compile(r"[a-z0-9_]{0,40}")
_SECONDS_MAX = 1e9


@dataclass(frozen=True, slots=True)
class OfferedRank:
    rank: int
    local_rank: int
    pid: int  # as the launcher sees it; 0 where it has not started yet


@dataclass(frozen=True, slots=True)
class Offer:
    """All ranks of one job on this node."""

    job_id: uuid.UUID
    job_name: str
    attempt: int
    ranks: tuple[OfferedRank, ...]


@dataclass(frozen=True, slots=True)
class ShownFinding:
    """A finding about ranks of one job on this node."""

    kind: str  # a detectors.finding.Kind: one of KINDS
    ranks: tuple[int, ...]  # the culprits; none: nobody is accused
    section: str  # for a slow rank: the section that grew
    cause: str  # for a slow rank, from detectors.slow.cause_table; empty: hardware shows nothing
    factor: float  # for a slow rank: its own work divided by its peers'
    at_s: float  # since when it is known, by the clock of who holds this; on the wire an age


@dataclass(frozen=True, slots=True)
class Told:
    """All that is found about one job on this node."""

    job_id: uuid.UUID
    findings: tuple[ShownFinding, ...]


@dataclass(frozen=True, slots=True)
class ShownCheckpoint:
    """The figures of one job's checkpoints."""

    job_id: uuid.UUID
    figures: CheckpointFigures


def socket_paths(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return where an agent may listen on this node: the service's place, then the user's own."""
    paths = [Path("/run/rankmend/agent.sock")]
    if runtime_folder := environment.get("XDG_RUNTIME_DIR"):
        paths.append(Path(runtime_folder) / "rankmend" / "agent.sock")
    return tuple(paths)


def encode(offer: Offer) -> bytes:
    """Return the message for ``offer``, or raise SourceError when `decode` would refuse it."""
    message = {
        "version": VERSION,
        "job_id": str(offer.job_id),
        "job_name": offer.job_name,
        "attempt": offer.attempt,
        "ranks": [
            {"rank": rank.rank, "local_rank": rank.local_rank, "pid": rank.pid}
            for rank in offer.ranks
        ],
    }
    data = json.dumps(message, separators=(",", ":")).encode("ascii")
    decode(data)
    return data


def encode_told(reported: Told, now_s: float) -> bytes:
    """Return the message for ``told``, or raise SourceError when `decode` would refuse it."""
    message = {
        "version": VERSION,
        "job_id": str(reported.job_id),
        "findings": [
            {
                "kind": finding.kind,
                "ranks": finding.ranks,
                "section": finding.section,
                "cause": finding.cause,
                "factor": finding.factor,
                "age_s": round(max(0.0, now_s - finding.at_s), 3),
            }
            for finding in reported.findings
        ],
    }
    data = json.dumps(message, separators=(",", ":")).encode("ascii")
    decode(data, now_s)
    return data


def decode(data: bytes, now_s: float = 0.0) -> "Offer | Told | ShownCheckpoint":
    """Return what a message from an untrusted peer holds, or raise SourceError.

    ``now_s`` dates what travels as an age.
    """
    if len(data) > MESSAGE_BYTES_MAX:
        raise SourceError(f"message of {len(data)} bytes, at most {MESSAGE_BYTES_MAX} are read")
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"message is not JSON: {_shortened(data)}") from error
    version = message.get("version") if isinstance(message, dict) else None
    if version != VERSION or isinstance(version, bool):
        raise SourceError(
            f"message of version {_shortened(version)}; this rankmend reads version {VERSION}"
        )
    if "findings" in message:
        return _parse_findings(message, now_s)
    if "checkpoint" in message:
        fields = _object(message, ("version", "job_id", "checkpoint"), "message")
        figures = decode_figures(fields["checkpoint"], now_s)
        return ShownCheckpoint(_job_id(fields["job_id"]), figures)
    fields = _object(message, ("version", "job_id", "job_name", "attempt", "ranks"), "message")
    ranks = fields["ranks"]
    if not isinstance(ranks, list) or len(ranks) > RANKS_MAX:
        raise SourceError(f"ranks is not a list of at most {RANKS_MAX}: {_shortened(ranks)}")
    offered = tuple(_offered_rank(rank) for rank in ranks)
    if len({rank.rank for rank in offered}) != len(offered):
        raise SourceError("a rank is offered twice in one message")
    return Offer(
        job_id=_job_id(fields["job_id"]),
        job_name=_job_name(fields["job_name"]),
        attempt=_number(fields["attempt"], "attempt"),
        ranks=offered,
    )


def _parse_findings(message: dict[str, Any], now_s: float) -> Told:
    fields = _object(message, ("version", "job_id", "findings"), "message")
    findings = fields["findings"]
    if not isinstance(findings, list) or len(findings) > FINDINGS_MAX:
        raise SourceError(
            f"findings is not a list of at most {FINDINGS_MAX}: {_shortened(findings)}"
        )
    shown = tuple(_shown_finding(finding, now_s) for finding in findings)
    slow = [item.ranks for item in shown if item.kind == "rank_slow"]
    if len(set(slow)) != len(slow) or any(len(ranks) != 1 for ranks in slow):
        raise SourceError("a slow rank is reported twice, or is not one rank")
    others = [item.kind for item in shown if item.kind != "rank_slow"]
    if len(others) > 1:
        raise SourceError(f"more than one incident is reported: {_shortened(others)}")
    return Told(_job_id(fields["job_id"]), shown)


def _shown_finding(value: Any, now_s: float) -> ShownFinding:
    names = ("kind", "ranks", "section", "cause", "factor", "age_s")
    fields = _object(value, names, "finding")
    kind, section, cause, ranks = (fields[name] for name in ("kind", "section", "cause", "ranks"))
    if not isinstance(kind, str) or kind not in KINDS:
        raise SourceError(f"kind is not one of {', '.join(sorted(KINDS))}: {_shortened(kind)}")
    if not isinstance(section, str) or section not in SECTIONS:
        raise SourceError(f"section is not a part of a step: {_shortened(section)}")
    if not isinstance(cause, str) or _CAUSE.fullmatch(cause) is None:
        raise SourceError(f"cause is not a name of a cause: {_shortened(cause)}")
    if not isinstance(ranks, list) or len(ranks) > CULPRITS_MAX:
        raise SourceError(f"ranks is not a list of at most {CULPRITS_MAX}: {_shortened(ranks)}")
    return ShownFinding(
        kind=kind,
        ranks=tuple(_number(rank, "rank") for rank in ranks),
        section=section,
        cause=cause,
        factor=_seconds(fields["factor"], "factor"),
        at_s=now_s - _seconds(fields["age_s"], "age_s"),
    )


def _seconds(value: Any, what: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _SECONDS_MAX:
        raise SourceError(f"{what} is not a number from 0 to {_SECONDS_MAX:g}: {_shortened(value)}")
    return float(value)


def _offered_rank(value: Any) -> OfferedRank:
    fields = _object(value, ("rank", "local_rank", "pid"), "rank")
    return OfferedRank(**{name: _number(number, name) for name, number in fields.items()})


def _object(value: Any, names: tuple[str, ...], what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != set(names):
        raise SourceError(f"{what} has not just the fields {', '.join(names)}: {_shortened(value)}")
    return value


def _number(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _NUMBER_MAX:
        raise SourceError(f"{what} is not a number from 0 to {_NUMBER_MAX}: {_shortened(value)}")
    return value


def _job_id(value: Any) -> uuid.UUID:
    try:
        job_id = uuid.UUID(value)
    except (ValueError, TypeError, AttributeError) as error:
        raise SourceError(f"job_id is not a UUID: {_shortened(value)}") from error
    return job_id


def _job_name(value: Any) -> str:
    if (
        not isinstance(value, str)
        or len(value) > JOB_NAME_CHARS_MAX
        or not value.isprintable()  # no control character, no half of a surrogate pair
    ):
        raise SourceError(
            f"job_name is not printable text of at most {JOB_NAME_CHARS_MAX} characters: {_shortened(value)}"
        )
    return value


def _shortened(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."

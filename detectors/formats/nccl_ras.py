"""Answers of NCCL's RAS: which rank of a communicator has launched fewer collectives than the others, or is gone. Pure.

`ncclras -f json` (NCCL 2.28.7 and later) names every rank; the text of `ncclras` (2.24 and later) names outliers alone.
Written after NCCL's own sources (src/ras/client_support.cc), and tested with answers in that form; unproved on hardware.

A communicator's ranks are its own numbers: of the largest one, which holds all processes, they are usually those of the job.
Host and process tell for certain.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from detectors.finding import Evidence
from detectors.wording import ranks_in_words
from rankmend.errors import SourceError

BYTES_MAX: Final = 64 * 1024 * 1024  # 16,384 ranks take 15 MB of JSON for each communicator
EVIDENCE_MAX: Final = 8
_PLACE: Final = r"(?: -- GPU (?P<gpu>\d+)(?: \(NVML \d+\))? managed by process (?P<pid>\d+) on node (?P<host>\S+))?"
_LAUNCHED: Final = re.compile(
    r"Rank (?P<rank>\d+) has launched up to operation (?P<count>\d+)" + _PLACE
)
_NONE: Final = re.compile(r"Rank (?P<rank>\d+) has not launched any operations" + _PLACE)
_LISTED: Final = re.compile(r"Rank (?P<rank>\d+)(?P<listed>)" + _PLACE)  # of the group before it
_MANY: Final = re.compile(
    r"(?<!\d)(?P<ranks>\d+) ranks have launched up to operation (?P<count>\d+)"
)
_OPERATION: Final = re.compile(r"Communicator ranks have different (?P<name>\w+) operation counts")

_Number = Annotated[int, Meta(ge=0)]
_Text = Annotated[str, Meta(max_length=256)]


class _Gone(msgspec.Struct, frozen=True):
    unresponsive: bool = False
    considered_dead: bool = False


class _Rank(msgspec.Struct):
    rank: _Number
    host: _Text
    pid: int
    cuda_dev: int
    collective_counts: dict[_Text, _Number] = {}


class _Missing(msgspec.Struct):
    rank: _Number
    host: _Text
    pid: int
    cuda_dev: int
    status: _Gone = _Gone()


class _Communicator(msgspec.Struct):
    hash: _Text
    size: _Number
    ranks: list[_Rank]
    missing_ranks: list[_Missing] = []


class _Answer(msgspec.Struct):
    nccl_version: _Text
    communicators: list[_Communicator]


@dataclass(frozen=True, slots=True)
class RasRank:
    """A rank that stands out in a communicator."""

    rank: int
    host: str  # an address; empty: not known
    pid: int | None
    gpu: int | None
    operation: str  # AllReduce ...; empty: it does not answer
    launched: int  # of these operations
    others: int  # that most others have launched
    is_dead: bool = False  # NCCL counts its process as dead

    @property
    def is_missing(self) -> bool:
        return not self.operation


def read_ras(data: bytes) -> tuple[RasRank, ...]:
    """Return the ranks that stand out in an answer, JSON or text; raise SourceError where it is neither."""
    if len(data) > BYTES_MAX:
        raise SourceError(f"the answer of NCCL's RAS has {len(data)} bytes, over {BYTES_MAX}")
    if data.lstrip()[:1] == b"{":
        try:
            answer = msgspec.json.decode(data, type=_Answer)
        except (msgspec.DecodeError, RecursionError) as error:
            raise SourceError(f"the answer of NCCL's RAS can't be read: {error}") from error
        return tuple(_of_json(answer))
    text = data.decode("utf-8", "replace")
    if "NCCL version" not in text:
        raise SourceError(f"this is not an answer of NCCL's RAS: {text[:80]!r}")
    return tuple(_of_text(text))


def _of_json(answer: _Answer) -> Iterator[RasRank]:
    """Yield those of the largest communicator: smaller ones are its parts."""
    if not answer.communicators:
        return
    largest = max(answer.communicators, key=lambda communicator: communicator.size)
    for gone in largest.missing_ranks:
        status = gone.status
        if status.unresponsive or status.considered_dead:
            yield RasRank(
                gone.rank, gone.host, gone.pid, gone.cuda_dev, "", 0, 0, status.considered_dead
            )
    for name in sorted({name for rank in largest.ranks for name in rank.collective_counts}):
        counts = {rank.rank: rank.collective_counts.get(name, 0) for rank in largest.ranks}
        most = max(counts.values())
        behind = [rank for rank in largest.ranks if counts[rank.rank] < most]
        # If most are behind, one is ahead with work of its own, as in detectors.hang.live.
        if 2 * len(behind) > len(counts):
            continue
        usual = Counter(counts.values()).most_common(1)[0][0]
        for rank in behind:
            yield RasRank(
                rank.rank, rank.host, rank.pid, rank.cuda_dev, name, counts[rank.rank], usual
            )


def _of_text(text: str) -> Iterator[RasRank]:
    """Yield the outliers that the text names; others' counts come before them."""
    operation, usual, of_group = "", 0, 0
    for line in text.splitlines():
        if found := _OPERATION.search(line):
            operation, usual, of_group = found["name"], 0, 0
        elif found := _MANY.search(line):
            of_group = int(found["count"])
            usual = usual or of_group  # the largest group comes first
        elif found := _LAUNCHED.search(line) or _NONE.search(line) or _LISTED.search(line):
            reported = found.groupdict()
            count = int(reported.get("count") or (of_group if "listed" in reported else 0))
            if operation and count < usual:
                yield RasRank(
                    int(found["rank"]),
                    found["host"] or "",
                    int(found["pid"]) if found["pid"] else None,
                    int(found["gpu"]) if found["gpu"] else None,
                    operation,
                    count,
                    usual,
                )


def ras_evidence(found: tuple[RasRank, ...]) -> tuple[Evidence, ...]:
    """Return what the answer says, in lines for a finding."""
    lines = []
    for rank in found[:EVIDENCE_MAX]:
        where = f" (process {rank.pid} on {rank.host})" if rank.pid and rank.host else ""
        who = f"{ranks_in_words([rank.rank])}{where}"
        if rank.is_missing:
            lines.append(f"{who}: {'counted as dead' if rank.is_dead else 'does not answer'}")
        else:
            lines.append(f"{who}: {rank.launched} {rank.operation} launched, others {rank.others}")
    return tuple(Evidence("NCCL RAS", line) for line in lines)

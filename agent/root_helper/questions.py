"""Queries of the agent to the root helper, and their format. docs/reference/root-helper.md describes the format.

One connection carries one question and one answer. A question is one line of JSON that names a
query out of `HelperQuery` and nothing else: no path, no device, no argument. An answer is one line.
"""

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from rankmend.errors import SourceError

VERSION: Final = 1
SOCKET_PATH: Final = Path("/run/rankmend-helper/helper.sock")
QUESTION_BYTES_MAX: Final = 256
ANSWER_BYTES_MAX: Final = 8 << 20
RESULTS_MAX: Final = 128
QUERY_S_MAX: Final = 60.0  # per query with all its programs; ipmi-sel took 15 to 32 s in reports


class HelperQuery(Enum):
    IPMI_SENSORS = "ipmi_sensors"
    IPMI_EVENTS = "ipmi_events"
    DISK_SMART = "disk_smart"
    NVME_SMART = "nvme_smart"
    TRANSCEIVERS = "transceivers"
    PCIE_ACS = "pcie_acs"


class ProgramOutcome(Enum):
    ANSWERED = "answered"
    ABSENT = "absent"  # no such program, no such device
    FAILED = "failed"  # too slow, too much, could not be started


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The output of one program."""

    name: str  # name of the device, or of the part of the query
    outcome: ProgramOutcome
    exit_code: int | None = None
    output: str = ""
    error: str = ""  # why absent or failed, else what the program wrote to standard error


@dataclass(frozen=True, slots=True)
class HelperAnswer:
    query: HelperQuery
    age_s: float  # since the programs ran
    results: tuple[ProgramResult, ...]


def encode_question(query: HelperQuery) -> bytes:
    return json.dumps({"version": VERSION, "query": query.value}).encode() + b"\n"


def decode_question(line: bytes) -> HelperQuery:
    """Return the query of a peer that may be hostile, or raise SourceError."""
    if len(line) > QUESTION_BYTES_MAX:
        raise SourceError(f"query of {len(line)} bytes; the limit is {QUESTION_BYTES_MAX}")
    message = _object(line, "question")
    if set(message) != {"version", "query"}:
        raise SourceError(f"query with the keys {sorted(message)[:4]}, expected version, query")
    if message["version"] != VERSION or isinstance(message["version"], bool):
        raise SourceError(f"query of version {message['version']!r}, expected {VERSION}")
    return _query(message["query"])


def encode_answer(answer: HelperAnswer) -> bytes:
    results = [
        {
            "name": result.name,
            "outcome": result.outcome.value,
            "exit_code": result.exit_code,
            "output": result.output,
            "error": result.error,
        }
        for result in answer.results
    ]
    message = {
        "version": VERSION,
        "query": answer.query.value,
        "age_s": answer.age_s,
        "results": results,
    }
    return json.dumps(message).encode() + b"\n"


def encode_refusal(reason: str) -> bytes:
    return json.dumps({"version": VERSION, "refused": reason}).encode() + b"\n"


def decode_answer(line: bytes, query: HelperQuery) -> HelperAnswer:
    """Return the helper's answer, or raise SourceError with its reason where it refused."""
    message = _object(line, "answer")
    if message.get("version") != VERSION:
        raise SourceError(f"answer of version {message.get('version')!r}, expected {VERSION}")
    if "refused" in message:
        raise SourceError(f"the root helper refuses {query.value}: {message['refused']}")
    results, age_s = message.get("results"), message.get("age_s")
    if _query(message.get("query")) is not query or not isinstance(results, list):
        raise SourceError(f"the root helper answered another query than {query.value}")
    if len(results) > RESULTS_MAX:
        raise SourceError(f"answer with {len(results)} results, at most {RESULTS_MAX}")
    if not isinstance(age_s, int | float):
        raise SourceError(f"answer with the age {age_s!r}")
    return HelperAnswer(query, float(age_s), tuple(_result(item) for item in results))


def _result(item: Any) -> ProgramResult:
    try:
        result = ProgramResult(
            name=item["name"],
            outcome=ProgramOutcome(item["outcome"]),
            exit_code=item["exit_code"],
            output=item["output"],
            error=item["error"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError("the root helper sent an invalid result") from error
    texts = (result.name, result.output, result.error)
    if not all(isinstance(text, str) for text in texts) or not isinstance(
        result.exit_code, int | None
    ):
        raise SourceError("the root helper sent a result of the wrong type")
    return result


def _query(name: Any) -> HelperQuery:
    try:
        return HelperQuery(name)
    except ValueError as error:
        raise SourceError(f"no query {str(name)[:40]!r}") from error


def _object(line: bytes, what: str) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{what} is not JSON") from error
    if not isinstance(message, dict):
        raise SourceError(f"{what} is not an object")
    return message

"""The agent's side: asks the root helper. Every question has an end.

Called by collectors in threads of their own; what they answer carries its age from there on.
"""

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Final

from agent.root_helper.questions import (
    ANSWER_BYTES_MAX,
    QUERY_S_MAX,
    HelperAnswer,
    HelperQuery,
    ProgramOutcome,
    decode_answer,
    encode_question,
)
from agent.sources.pcie_acs import BridgeAcs, decode_lines
from rankmend.clock import Clock
from rankmend.errors import NoSourceError, SourceError

ANSWER_S_MAX: Final = QUERY_S_MAX + 10.0  # the programs, their end, and the way back
NOTHING_S: Final = 600.0  # until a device that was not there is requested again
UNCHANGED_S: Final = 600.0  # the ACS of bridges: set at boot, seldom by an operator
MEMORY_REUSE_S: Final = 30.0  # half an interval of the transceiver collector
_EARLY_S: Final = 5.0  # collectors ask at multiples of a minute, some milliseconds early or late
_CHUNK: Final = 65_536

Ask = Callable[[HelperQuery], HelperAnswer]


class HelperClient:
    """Asks one question a connection."""

    def __init__(self, path: Path, clock: Clock, answer_s_max: float = ANSWER_S_MAX) -> None:
        self._path = path
        self._clock = clock
        self._answer_s_max = answer_s_max

    def ask(self, query: HelperQuery) -> HelperAnswer:
        """Return the answer, or raise NoSourceError (no helper here) or SourceError."""
        deadline_s = self._clock.now_s() + self._answer_s_max
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(self._answer_s_max)
            try:
                connection.connect(str(self._path))
            except FileNotFoundError as error:
                raise NoSourceError(f"no root helper at {self._path}") from error
            except OSError as error:
                raise SourceError(f"cannot reach the root helper at {self._path}") from error
            try:
                # a helper that refuses may hang up first: its answer says why
                with contextlib.suppress(BrokenPipeError):
                    connection.sendall(encode_question(query))
                line = b"".join(self._chunks(connection, deadline_s))
            except OSError as error:
                raise SourceError(f"the root helper does not answer {query.value}") from error
        if not line.endswith(b"\n"):
            raise SourceError(
                f"the root helper cut off the answer to {query.value} after {len(line)} bytes"
            )
        return decode_answer(line, query)

    def _chunks(self, connection: socket.socket, deadline_s: float) -> Iterator[bytes]:
        total = 0
        while True:
            left_s = deadline_s - self._clock.now_s()
            if left_s <= 0:
                raise SourceError("the root helper does not finish its answer")
            connection.settimeout(left_s)
            try:
                data = connection.recv(_CHUNK)
            except ConnectionResetError:  # refused before the question was read: that is the end
                return
            if not data:
                return
            total += len(data)
            if total > ANSWER_BYTES_MAX:
                raise SourceError(f"the root helper sends more than {ANSWER_BYTES_MAX} bytes")
            yield data


class SeldomAsked:
    """Asks the helper no more than is worth starting it for: each start is a tenth of a second of CPU.

    A query that nothing answers, for there is no such device or program, is not put again for
    `NOTHING_S`, and one whose answer does not change by itself not for `UNCHANGED_S`. A helper that
    fails or refuses is asked again each time. Ages go on: an answer that is given again is older.
    """

    def __init__(self, ask: Ask, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._lock = Lock()  # guards the answers; never held while the helper is asked
        self._answers: dict[HelperQuery, tuple[float, HelperAnswer]] = {}

    def ask(self, query: HelperQuery) -> HelperAnswer:
        """Return the helper's answer, now or of a while ago; raises as the helper's client does."""
        now_s = self._clock.now_s()
        with self._lock:
            known = self._answers.get(query)
        if known is not None and now_s - known[0] < _reuse_s(known[1]):
            at_s, answer = known
            return replace(answer, age_s=answer.age_s + now_s - at_s)
        answer = self._ask(query)
        with self._lock:
            self._answers[query] = now_s, answer
        return answer


def _reuse_s(answer: HelperAnswer) -> float:
    outcomes = {result.outcome for result in answer.results}
    if outcomes <= {ProgramOutcome.ABSENT} or _finds_no_transceiver(answer):
        return NOTHING_S - _EARLY_S
    is_steady = answer.query is HelperQuery.PCIE_ACS and outcomes == {ProgramOutcome.ANSWERED}
    return UNCHANGED_S - _EARLY_S if is_steady else 0.0


def _finds_no_transceiver(answer: HelperAnswer) -> bool:
    """Return whether the helper's own program has looked and found no transceiver."""
    return answer.query is HelperQuery.TRANSCEIVERS and all(
        result.outcome is ProgramOutcome.ANSWERED
        and not result.output.strip()
        and not result.exit_code
        for result in answer.results
    )


class TransceiverMemories:
    """Gives the memory of a device's transceiver; one question is for all devices."""

    def __init__(self, ask: Ask, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._lock = Lock()
        self._asked_at_s: float | None = None
        self._memories: dict[str, bytes | str] = {}
        self._failure: Exception | None = None

    def read(self, device: str) -> bytes:
        """Return the memory, or raise NoSourceError or SourceError as `Ethtool.module_memory`."""
        with self._lock:
            now_s = self._clock.now_s()
            if self._asked_at_s is None or now_s - self._asked_at_s >= MEMORY_REUSE_S:
                self._asked_at_s = now_s
                self._memories, self._failure = {}, None
                try:
                    self._memories = parse_memories(self._ask(HelperQuery.TRANSCEIVERS))
                except (NoSourceError, SourceError) as error:
                    self._failure = error
            if self._failure is not None:
                raise type(self._failure)(str(self._failure)) from self._failure
            memory = self._memories.get(device)
        if memory is None:
            raise NoSourceError(f"{device} has no transceiver that the root helper can read")
        if isinstance(memory, str):
            raise SourceError(memory)
        return memory


def ask_acs(ask: Ask) -> list[BridgeAcs]:
    """Return the ACS of the bridges above GPUs and network cards, or raise NoSourceError or SourceError."""
    answer = ask(HelperQuery.PCIE_ACS)
    found = [line for result in answer.results for line in decode_lines(result.output)]
    for result in answer.results:
        if result.outcome is not ProgramOutcome.ANSWERED and not found:
            raise SourceError(f"the ACS of bridges can't be read: {result.error}")
    return found


def parse_memories(answer: HelperAnswer) -> dict[str, bytes | str]:
    """Return by device its transceiver's memory, or why it could not be read."""
    memories: dict[str, bytes | str] = {}
    for result in answer.results:
        for line in result.output.splitlines():
            try:
                item = json.loads(line)
                text = item.get("error")
                memories[str(item["device"])] = str(text) if text else bytes.fromhex(item["memory"])
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue  # the last line, where the program was cut off
        if result.outcome is not ProgramOutcome.ANSWERED and not memories:
            raise SourceError(f"transceivers can't be read: {result.error}")
    return memories

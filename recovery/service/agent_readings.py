"""Reads the agent of a blamed node when an incident opens, and again when it is over; the console shows what it said.

Nothing is decided by it. The deciding thread only notes which node is to be read; two threads ask, parse and write. A node
whose agent can't be read gets a reading that says why.
"""

import logging
import queue
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rankmend.alerting import make_client_context
from rankmend.clock import Clock
from rankmend.errors import RankmendError, SourceError
from recovery.accounting.readings.agent_call import AgentAddress, read_agent_page
from recovery.accounting.readings.reading import NodeReading, ReadAt, pick_samples
from recovery.accounting.readings.reading_file import NODES_MAX, add_reading
from recovery.journal.accounting import account_all
from recovery.journal.attempt_records import AttemptVerified
from recovery.journal.incident_machine import Phase
from recovery.journal.incident_records import EvidenceCollected, IncidentEvent, IncidentOpened
from recovery.journal.node_records import EvidenceTaken
from recovery.journal.records import Entry
from recovery.service.controller_config import Config, ConsoleSection
from recovery.service.discovery import agent_address

log = logging.getLogger(__name__)

_THREADS: Final = 2
_WAITING_MAX: Final = 64  # readings; of more none is made
_LOOK_BACK: Final = 2_000  # records of a journal in which an open incident is looked for
_ENTRIES_MAX: Final = 1_000  # of an open incident, kept to see its end
_ENDS: Final = (Phase.RECOVERED, Phase.ESCALATED, Phase.CANCELLED)


@dataclass(frozen=True, slots=True)
class _Wanted:
    folder: Path  # of the job
    incident_id: str
    node: str
    at: ReadAt


@dataclass(slots=True)
class _Open:
    """An incident that is not over."""

    folder: Path
    incident_id: str
    entries: list[Entry] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)  # that are blamed


class AgentReadings:
    def __init__(self, clock: Clock, config: Callable[[], Config]) -> None:
        """``config``: the configuration in force."""
        self._clock = clock
        self._config = config
        self._open: dict[str, _Open] = {}  # by job
        self._wanted: queue.Queue[_Wanted] = queue.Queue(_WAITING_MAX)
        self._lock = threading.Lock()  # of the files
        self._threads = [
            threading.Thread(target=self._run, name=f"agent-readings-{number}", daemon=True)
            for number in range(_THREADS)
        ]
        self._is_closing = threading.Event()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Read no more; a reading that is under way is left to itself."""
        self._is_closing.set()

    # The deciding thread.

    def journal_opened(self, job_id: str, folder: Path, opened: Sequence[Entry]) -> None:
        """Take up the incident that is open in a journal, if one is; its nodes are not read again."""
        entries = _newest_incident(opened)
        if entries and isinstance(record := entries[0].record, IncidentOpened):
            item = _Open(folder, record.incident_id, entries)
            for entry in item.entries:
                _take_blamed(entry, item)
            if not _is_over(item):
                self._open[job_id] = item

    def entry(self, job_id: str, folder: Path, entry: Entry) -> None:
        """Note what a durable entry says of an incident."""
        record = entry.record
        if isinstance(record, IncidentOpened):
            self._open[job_id] = _Open(folder, record.incident_id)
        item = self._open.get(job_id)
        if item is None:
            return
        if len(item.entries) < _ENTRIES_MAX:
            item.entries.append(entry)
        for node in _take_blamed(entry, item):
            self._want(item, node, ReadAt.OPENED)
        if isinstance(record, IncidentEvent | AttemptVerified) and _is_over(item):
            self._close(job_id)

    def ended(self, job_id: str) -> None:
        """Take note that the job has ended."""
        if job_id in self._open:
            self._close(job_id)

    def _close(self, job_id: str) -> None:
        item = self._open.pop(job_id)
        for node in item.nodes:
            self._want(item, node, ReadAt.CLOSED)

    def _want(self, item: _Open, node: str, at: ReadAt) -> None:
        reported = self._config().console
        if not reported.enabled or not reported.read_agents:
            return
        try:
            self._wanted.put_nowait(_Wanted(item.folder, item.incident_id, node, at))
        except queue.Full:
            log.warning("an agent is not read: too many wait", extra={"node": node})

    # The threads.

    def _run(self) -> None:
        while not self._is_closing.is_set():
            try:
                wanted = self._wanted.get(timeout=1.0)
            except queue.Empty:
                continue
            try:
                self.read(wanted)
            except RankmendError as error:
                log.warning("a reading is not kept", extra={"error": str(error)})
            except Exception:
                log.exception("an agent is not read", extra={"node": wanted.node})

    def read(self, wanted: _Wanted) -> None:
        """Read one agent, and keep what it said or why it said nothing."""
        try:
            samples, is_cut = pick_samples(self._page_of(wanted.node), wanted.node)
            problem = ""
        except RankmendError as error:
            samples, is_cut, problem = (), False, str(error)
        if wanted.folder.is_dir():  # an ended job may be removed meanwhile
            reading = NodeReading(
                wanted.node, wanted.at, self._clock.unix_s(), problem, samples, is_cut
            )
            with self._lock:
                add_reading(wanted.folder, wanted.incident_id, reading)

    def _page_of(self, node: str) -> bytes:
        config = self._config()
        address = agent_address(node, config.discovery)
        if address is None:
            raise SourceError(
                "its name is not a host name, and [discovery.addresses] has none for it"
            )
        return read_agent_page(AgentAddress(*address), self._context_of(config.console))

    def _context_of(self, reported: ConsoleSection) -> ssl.SSLContext | None:
        if reported.agents_ca_file is None:
            return None
        return make_client_context(
            reported.agents_ca_file, reported.agents_cert_file, reported.agents_key_file
        )


def _is_over(item: _Open) -> bool:
    return account_all(item.entries)[-1].state.phase in _ENDS


def _newest_incident(opened: Sequence[Entry]) -> list[Entry]:
    """Return what a journal has since its newest incident opened, at most _ENTRIES_MAX entries; none: it is long ago."""
    for place in range(len(opened) - 1, max(-1, len(opened) - 1 - _LOOK_BACK), -1):
        if isinstance(opened[place].record, IncidentOpened):
            return list(opened[place : place + _ENTRIES_MAX])
    return []


def _take_blamed(entry: Entry, item: _Open) -> list[str]:
    """Note the nodes that an entry blames for an incident, and return those that are new."""
    room = NODES_MAX - len(item.nodes)
    found = [
        node for node in dict.fromkeys(_blamed(entry, item)) if node and node not in item.nodes
    ]
    item.nodes += found[:room]
    return found[:room]


def _blamed(entry: Entry, item: _Open) -> Iterator[str]:
    match entry.record:
        case IncidentOpened(failure=failure):
            yield failure.finding.node
        case EvidenceCollected(incident_id=item.incident_id, finding=finding) if (
            finding is not None
        ):
            yield finding.node
        case EvidenceTaken(incident_id=item.incident_id, evidence=evidence):
            yield from (alert.node for alert in evidence)
        case _:
            return

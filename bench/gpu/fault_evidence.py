"""XIDs as the agent gets them, both ways: from the kernel log and as events of NVML."""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agent.findings.policy_files import load_policy
from agent.sources.kmsg import KmsgDevice, KmsgReader
from bench.gpu.watch import Watched
from detectors.kernel.event import EventKind, KernelEvent
from detectors.kernel.event_groups import KernelLogState
from detectors.kernel.event_policy import policy_of
from detectors.kernel.log import Record
from detectors.kernel.log_verdict import judge_xids
from rankmend.errors import RankmendError

RECORDS_MAX: Final = 100_000
KMSG: Final = Path("/dev/kmsg")


@dataclass
class Evidence:
    """What followed one fault."""

    fault: str
    pid: int
    logged: list[KernelEvent] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    events: list[int] = field(default_factory=list)  # XIDs of NVML

    @property
    def logged_codes(self) -> set[int]:
        return {event.code for event in self.logged if event.code is not None}

    @property
    def codes(self) -> set[int]:
        return self.logged_codes | set(self.events)


class Ears:
    """Hears XIDs from now on."""

    def __init__(self, watched: Watched | None, path: Path = KMSG) -> None:
        self._watched = watched
        self._reader: KmsgReader | None = None
        self.why_no_log = self.why_no_events = ""
        try:
            self._reader = KmsgReader(KmsgDevice(path))
            while self._reader.read_batch(RECORDS_MAX):  # what was there before
                pass
        except RankmendError as error:
            self._reader, self.why_no_log = None, str(error)
        if watched is None:
            self.why_no_events = "NVML can't be opened"
        elif not watched.sampler.event_mask & 0x8:  # nvmlEventTypeXidCriticalError
            self.why_no_events = "NVML has no XID events for this GPU"

    @property
    def has_log(self) -> bool:
        return self._reader is not None

    @property
    def has_events(self) -> bool:
        return not self.why_no_events

    def hear(self, evidence: Evidence, seconds_max: float, more_s: float = 0.4) -> None:
        """Wait until each way that works has brought an XID, and a little more; at most so long."""
        state = KernelLogState()
        end_s, is_heard = time.monotonic() + seconds_max, False
        while time.monotonic() < end_s:
            self._read_log(state, evidence)
            self._wait_event(evidence, 0.1)
            has_all = (bool(evidence.logged) or not self.has_log) and (
                bool(evidence.events) or not self.has_events
            )
            if has_all and not is_heard and (self.has_log or self.has_events):
                is_heard, end_s = True, min(end_s, time.monotonic() + more_s)

    def _read_log(self, state: KernelLogState, evidence: Evidence) -> None:
        if self._reader is None:
            return
        with suppress(RankmendError):
            for record in self._reader.read_batch(RECORDS_MAX):
                event = state.feed(record)
                if event is not None and event.kind is EventKind.XID:
                    evidence.logged.append(event)
                    evidence.records.append(record)

    def _wait_event(self, evidence: Evidence, seconds: float) -> None:
        if self._watched is None or not self.has_events:
            time.sleep(seconds)
            return
        event = self._watched.sampler.wait_event(seconds)
        if event is not None and event[1] == "xid":
            evidence.events.append(event[2])

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


def accusations(evidence: Evidence) -> list[str]:
    """Return the XIDs that would accuse the card, or end its use, each in words; none is right."""
    policy = load_policy()
    state = KernelLogState()
    state.feed_all(evidence.records)
    found = [
        f"XID {finding.code}: {finding.action.value}, {finding.reason}"
        for finding in judge_xids(state.groups(), policy)
        if finding.blames_hardware or finding.action.ends_use
    ]
    for code in sorted(set(evidence.events)):
        row = policy_of(policy, EventKind.XID, code)
        if row.blames_hardware or row.action.ends_use:
            found.append(f"XID {code} as an event: {row.action.value}")
    return found

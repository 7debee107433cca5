"""XIDs, machine checks, lost links, OOM kills and lockups, from the kernel's log.

Source: /dev/kmsg (agent/sources/kmsg.py), read by a thread that the kernel wakes: a message is known
        1 to 2 ms after it was printed. Rules: detectors/kernel/rules/matcher.py.
Cost:   nothing while the kernel is silent; 10 us a record. CAP_SYSLOG where dmesg_restrict is 1.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Final

from agent.metrics import Family, Metric, counter
from agent.sources.kmsg import (
    KernelLogDevice,
    KmsgDevice,
    KmsgReader,
    SavedKernelLog,
    load_saved,
    save,
)
from detectors.kernel.event import EventKind, KernelEvent
from detectors.kernel.event_groups import EventGroup, KernelLogState
from detectors.kernel.event_policy import PolicyTable
from detectors.kernel.log import parse_kmsg
from detectors.kernel.log_cases import KernelFinding
from detectors.kernel.log_verdict import judge
from rankmend.clock import Clock, read_boot_id
from rankmend.errors import NoSourceError, SourceError
from rankmend.injected_log import read_injected

FIRST_RECORDS_MAX: Final = 100_000  # before the first page: a ring of 16 MiB has as many
WAKE_RECORDS_MAX: Final = 2_000  # per wake-up: 20 ms
PAUSE_S: Final = 0.02  # after a full batch: in a storm one core is half used
_END_S_MAX: Final = 3.0  # for the thread that follows the log
REJUDGE_S: Final = 10.0  # of a log that has not grown; repeats are counted over a day
SAVE_S: Final = 5.0  # what is not saved is read and counted again, from the state saved before it

_CODED: Final = {
    EventKind.XID: ("rankmend_gpu_xid_total", "xid"),
    EventKind.SXID: ("rankmend_nvswitch_sxid_total", "sxid"),
}

log = logging.getLogger(__name__)

FAMILIES: Final[tuple[Family, ...]] = (
    counter(
        "kernel_log_messages",
        "",
        ("kind",),
        "Faults and changes that the kernel told of since boot, by kind (docs/reference/kernel-log.md).",
    ),
    counter(
        "kernel_log_device_messages",
        "",
        ("kind", "device"),
        "The same for each network device, disk or PCI address that was named.",
    ),
    counter(
        "gpu_xid",
        "",
        ("pci_bus_id", "xid"),
        "XIDs of a GPU since boot; the address is as sysfs writes it, 0000:3b:00.0.",
    ),
    counter("nvswitch_sxid", "", ("pci_bus_id", "sxid"), "SXIDs of an NVSwitch since boot."),
    counter("kernel_log_records", "", (), "Records of the kernel log that were read."),
    counter(
        "kernel_log_lost",
        "",
        (),
        "Records that the kernel overwrote before they were read, from the start of the boot on.",
    ),
    counter(
        "kernel_log_suppressed",
        "",
        (),
        "Messages that the kernel left out by its own rate limits, by its own count.",
    ),
    counter("kernel_log_broken", "", (), "Records in no form that the kernel documents."),
    counter(
        "kernel_log_untrusted",
        "",
        (),
        "Records that look like a fault and were written by a process, not by the kernel.",
    ),
    counter(
        "kernel_log_overflow",
        "",
        (),
        "Messages counted without their device because too many devices had trouble.",
    ),
)


class KernelLogCollector:
    name = "kernel_log"
    interval_s = 1.0

    def __init__(
        self,
        clock: Clock,
        policy: PolicyTable,
        path: Path | None,
        *,
        saved_path: Path | None = None,
        trusts_user: bool = False,
        injected_path: Path | None = None,
        on_events: Callable[[Sequence[KernelEvent]], None] | None = None,
        open_device: Callable[[Path], KernelLogDevice] = KmsgDevice,
        boot_id: str | None = None,
    ) -> None:
        """``path`` None: this node's log is not to be read. ``trusts_user``: for tests only.

        ``injected_path``: lines that `rankmend inject` tells (`rankmend.injected_log`), for as long as they are there.
        """
        self._injected_path = injected_path
        self._injected_trouble = ""
        self._clock = clock
        self._policy = policy
        self._path = path
        self._saved_path = saved_path
        self._on_events = on_events
        self._open_device = open_device
        self._boot_id = boot_id if boot_id is not None else read_boot_id()
        saved = load_saved(saved_path, self._boot_id) if saved_path else None
        self._state = KernelLogState(trusts_user=trusts_user, old=saved.state if saved else None)
        self._saved = saved or SavedKernelLog(self._boot_id, newest=-1, lost=0, broken=0)
        self._lock = Lock()  # guards the state and what has been read
        self._reader: KmsgReader | None = None
        self._thread: Thread | None = None
        self._stopping = Event()
        self._failure: Exception | None = None
        self._saved_at_s = clock.now_s()
        self._is_saved = True  # nothing has been read since the file was written
        self._save_trouble = ""
        self._fed = 0  # grows with each record that was read
        self._counted: tuple[int, tuple[Metric, ...]] | None = None  # as of which record
        self._judged: tuple[int, float, tuple[KernelFinding, ...]] | None = None  # record, time

    def collect(self) -> Iterator[Metric]:
        """Return the counts; the first run reads what the log holds and starts to follow it."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise SourceError("reading the kernel log failed") from failure
        if self._thread is None or not self._thread.is_alive():
            self._start()
        injected = self._injected()
        with self._lock:
            fed, counted = self._fed, self._counted
            if counted is not None and counted[0] == fed and not injected:
                return iter(counted[1])  # the log is as it was: as in nearly all seconds
            groups, counts = self._state.groups(), tuple(self._counts())
        metrics = (*counts, *_event_metrics((*groups, *injected)))
        self._counted = None if injected else (fed, metrics)
        return iter(metrics)

    def findings(self) -> tuple[KernelFinding, ...]:
        """Return what the log of this boot says is wrong, the worst first.

        A log that has not grown is judged anew each `REJUDGE_S`: with time alone a verdict only
        becomes milder, because what is older than a day no longer counts as a repeat.
        """
        injected, now_s = self._injected(), self._clock.now_s()
        with self._lock:
            fed, judged = self._fed, self._judged
            if (
                judged is not None
                and judged[0] == fed
                and not injected
                and now_s - judged[1] < REJUDGE_S
            ):
                return judged[2]
            groups = self._state.groups()
        findings = judge((*groups, *injected), self._policy, now_s)
        self._judged = None if injected else (fed, now_s, findings)
        return findings

    def _injected(self) -> tuple[EventGroup, ...]:
        """Return the events that are injected now; once their file has gone, so have they."""
        if self._injected_path is None:
            return ()
        try:
            lines = read_injected(self._injected_path)
        except SourceError as error:
            if str(error) != self._injected_trouble:
                log.warning("injected kernel log ignored", extra={"error": str(error)})
            self._injected_trouble = str(error)
            return ()
        state = KernelLogState()
        for line in lines:
            if (record := parse_kmsg(line.decode("ascii", "replace"))) is not None:
                state.feed(record)
        return state.groups()

    def stop(self) -> None:
        """Stop following the log and save how far it was read. It can be started again."""
        self._stopping.set()
        if (thread := self._thread) is not None:  # it may end by itself meanwhile
            if (reader := self._reader) is not None:
                reader.wake()
            thread.join(_END_S_MAX)
            self._thread = None
        self._save()

    def _start(self) -> None:
        if self._path is None:
            raise NoSourceError("no kernel log is configured")
        self._stopping.clear()
        saved = self._saved
        reader = KmsgReader(self._open_device(self._path), saved.newest, saved.lost, saved.broken)
        self._reader = reader
        self._read(reader, FIRST_RECORDS_MAX)
        thread = Thread(target=self._follow, args=(reader,), name="kernel-log", daemon=True)
        thread.start()
        self._thread = (
            thread  # only now: `stop` may come at any moment, and joins what it finds here
        )

    def _follow(self, reader: KmsgReader) -> None:
        try:
            while not self._stopping.is_set():
                reader.wait(SAVE_S)
                if self._read(reader, WAKE_RECORDS_MAX) >= WAKE_RECORDS_MAX:
                    self._stopping.wait(PAUSE_S)
                if self._clock.now_s() - self._saved_at_s >= SAVE_S:
                    self._save()
        except Exception as error:  # noqa: BLE001 - told by the next collect, which starts anew
            self._failure = error
            self._thread = None
        finally:
            reader.close()

    def _read(self, reader: KmsgReader, records_max: int) -> int:
        records = reader.read_batch(records_max)
        with self._lock:
            events = [event for record in records if (event := self._state.feed(record))]
            if records or reader.broken != self._saved.broken:
                self._fed += 1
                self._saved = SavedKernelLog(
                    self._boot_id, reader.newest, reader.lost, reader.broken
                )
                self._is_saved = False
        if events and self._on_events is not None:
            self._on_events(events)
        return len(records)

    def _save(self) -> None:
        """Save state and place together, at most every few seconds. A full disk loses nothing."""
        self._saved_at_s = self._clock.now_s()
        if self._saved_path is None or self._is_saved:
            return
        with self._lock:
            now, self._is_saved = self._saved, True
            saved = SavedKernelLog(
                now.boot_id, now.newest, now.lost, now.broken, self._state.snapshot()
            )
        try:
            save(self._saved_path, saved)
        except SourceError as error:
            self._is_saved = False
            if str(error) != self._save_trouble:
                log.warning("kernel log state not saved", extra={"error": str(error)})
            self._save_trouble = str(error)
        else:
            if self._save_trouble:
                log.info("kernel log state is saved again")
            self._save_trouble = ""

    def _counts(self) -> Iterator[Metric]:
        state, saved = self._state, self._saved
        yield Metric("rankmend_kernel_log_records_total", state.records)
        yield Metric("rankmend_kernel_log_lost_total", saved.lost)
        yield Metric("rankmend_kernel_log_suppressed_total", state.suppressed)
        yield Metric("rankmend_kernel_log_broken_total", saved.broken)
        yield Metric("rankmend_kernel_log_untrusted_total", state.untrusted)
        yield Metric("rankmend_kernel_log_overflow_total", state.overflowed)


def _event_metrics(groups: Sequence[EventGroup]) -> Iterator[Metric]:
    by_kind: Counter[EventKind] = Counter()
    by_device: Counter[tuple[EventKind, str]] = Counter()
    by_code: Counter[tuple[EventKind, str, str]] = Counter()
    for group in groups:
        by_kind[group.kind] += group.count
        if group.kind in _CODED:
            code = "" if group.code is None else str(group.code)
            by_code[group.kind, group.device, code] += group.count
        elif group.device:
            by_device[group.kind, group.device] += group.count
    for kind in EventKind:  # zeros, too: what is new today was 0 before
        yield Metric("rankmend_kernel_log_messages_total", by_kind[kind], (("kind", kind.value),))
    for (kind, device), count in by_device.items():
        labels = (("kind", kind.value), ("device", device))
        yield Metric("rankmend_kernel_log_device_messages_total", count, labels)
    for (kind, device, code), count in by_code.items():
        name, label = _CODED[kind]
        yield Metric(name, count, (("pci_bus_id", device), (label, code)))

"""Faults that software can cause: a kernel that misbehaves, the XID that follows, and who is blamed."""

import contextlib
import importlib
import importlib.util
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from bench.gpu import nvidia_smi
from bench.gpu.fault_evidence import Ears, Evidence, accusations
from bench.gpu.faulty_ranks import END_S_MAX, READY_S_MAX, Faults
from bench.gpu.rows import NotTriedError, Telling, Trial
from detectors.failed.error_classes import read_end
from detectors.failed.failed_ranks import RankEnd, detect_failed
from detectors.failed.said_error import FailureCause
from detectors.finding import Blame, Finding

LIMIT_S = 50.0  # takes some 25
CLAIMS: dict[str, str] = {
    "illegal_address": "A rank that reads far outside of its memory is classed as a kernel fault; the card is not accused.",
    "misaligned_address": "A rank that reads a misaligned address is classed as a kernel fault; the card is not accused.",
    "trap": "A rank whose kernel traps is classed as a kernel fault; the card is not accused.",
    "device_assert": "A rank that fails a device-side assertion is classed as a fault of the program.",
    "killed_loop": "A rank killed in an endless kernel ends at once, and no XID that follows accuses the card.",
    "xid_31": "An illegal address brings XID 31, which is judged as the program's.",
    "xid_13": "A misaligned address or a trap brings XID 13, which is judged as the program's.",
    "xid_43": "An assertion or an endless kernel that is killed brings XID 43, which is judged as harmless to the card.",
    "kernel_log": "The agent's reader finds the XIDs in the kernel log, with GPU and process.",
    "nvml_events": "The agent's collector gets the XIDs as events of NVML.",
    "usable_after": "After all of them a fresh process computes right, and the driver asks for no reset.",
}
# row -> fault, causes that its words may have
_RANKS: Final[dict[str, tuple[str, FailureCause]]] = {
    "illegal_address": ("read_far", FailureCause.KERNEL_FAULT),
    "misaligned_address": ("read_misaligned", FailureCause.KERNEL_FAULT),
    "trap": ("trap_always", FailureCause.KERNEL_FAULT),
    "device_assert": ("assert", FailureCause.PROGRAM),
}
_XIDS: Final = {
    "xid_31": (31, ("read_far",)),
    "xid_13": (13, ("read_misaligned", "trap_always")),
    "xid_43": (43, ("assert", "run_forever")),
}


def run(telling: Telling) -> None:
    """Try the rows of this area."""
    run_with(telling, importlib.import_module("pynvml"))


def run_with(
    telling: Telling,
    nvml: Any,
    ask: Callable[[], nvidia_smi.SmiAnswer] = nvidia_smi.ask,
) -> None:
    """Try the rows with this NVML; ``ask`` is nvidia-smi."""
    with tempfile.TemporaryDirectory(prefix="rankmend-faults-") as name:
        faults = Faults(nvml, Path(name))
        try:
            for row, (fault, cause) in _RANKS.items():
                with telling.row(row) as trial:
                    try_rank(trial, faults, fault, cause)
            with telling.row("killed_loop") as trial:
                try_killed_loop(trial, faults)
            for row, (code, by) in _XIDS.items():
                with telling.row(row) as trial:
                    try_xid(trial, faults, code, by)
            with telling.row("kernel_log") as trial:
                try_kernel_log(trial, faults)
            with telling.row("nvml_events") as trial:
                try_events(trial, faults)
            with telling.row("usable_after") as trial:
                try_usable(trial, faults, ask)
        finally:
            faults.close()


def try_rank(trial: Trial, faults: Faults, fault: str, cause: FailureCause) -> None:
    """Let a rank fault, and have its words and its end judged as those of rank 1 of 2."""
    rank = faults.ranks[fault]
    with faults.listening(rank) as evidence:
        rank.go()
        code = rank.end()
    lines = rank.lines()
    if code == 0 or code is None:
        trial.check(False, f"the rank ended with {code}: {lines[-3:]}")
        return
    said = read_end(None, lines)
    error = said.error or said.device
    trial.figure("exit", f"signal {-code}" if code < 0 else str(code))
    trial.figure("xids", _codes(evidence.codes))
    if error is None:
        trial.check(False, f"no error in its words: {lines[-3:]}")
        return
    trial.figure("cause", error.cause.value)
    trial.note(error.line[:160])
    trial.check(error.cause is cause, f"classed as {error.cause.value}, not {cause.value}")
    finding = judge_rank(code, lines)
    assert finding is not None, "no finding, though the rank failed"
    trial.figure("blame", finding.blame.value)
    own = finding.blame in (Blame.RANK, Blame.PROGRAM)
    trial.check(own, f"blamed is {finding.blame.value}")
    if found := accusations(evidence):
        trial.check(False, f"the card is accused: {'; '.join(found)}")


def judge_rank(code: int, lines: list[str]) -> Finding | None:
    """Return the finding about rank 1 of 2 that ended so."""
    return detect_failed(
        [
            RankEnd(
                rank=1,
                age_s=0.1,
                exit_code=code if code >= 0 else None,
                signal=-code if code < 0 else None,
                words=read_end(None, lines),
            )
        ],
        job_id="bench",
        attempt=1,
        node="bench",
        world_size=2,
    )


def try_killed_loop(trial: Trial, faults: Faults) -> None:
    """Kill a rank whose kernel never ends."""
    rank = faults.ranks["run_forever"]
    with faults.listening(rank) as evidence:
        rank.go()
        is_launched = rank.hear(READY_S_MAX) == "launched"
        time.sleep(0.5)
        is_running = rank.process.poll() is None
        gone_s = rank.kill()
    if not is_launched:
        raise RuntimeError(f"the kernel was not launched: {rank.lines()[-3:]}")
    trial.figure("gone_after_s", gone_s)
    trial.figure("xids", _codes(evidence.codes))
    trial.check(is_running, "it had ended before it was killed")
    trial.check(rank.process.poll() is not None, f"not gone {END_S_MAX:.0f} s after SIGKILL")
    found = accusations(evidence)
    trial.check(not found, f"the card is accused: {'; '.join(found)}")


class WhatFollowed(Protocol):
    """The part of `Faults` that says what was heard."""

    @property
    def heard(self) -> Sequence[Evidence]: ...

    @property
    def ears(self) -> Ears: ...


def try_xid(trial: Trial, faults: WhatFollowed, code: int, by: tuple[str, ...]) -> None:
    """Look for an XID among what followed the faults that bring it."""
    heard = [evidence for evidence in faults.heard if evidence.fault in by]
    if not heard:
        raise NotTriedError(f"none of {', '.join(by)} was launched")
    with_it = [evidence for evidence in heard if code in evidence.codes]
    seen = {evidence.fault: _codes(evidence.codes) for evidence in heard}
    for fault, codes in seen.items():
        trial.figure(fault, codes)
    if not any(evidence.codes for evidence in faults.heard):
        raise NotTriedError(_why_silent(faults.ears))
    if not with_it:
        if code == 43:  # not each driver reports it
            raise NotTriedError(f"this driver reports no XID 43 here: {seen}")
        if not faults.ears.has_log:  # NVML of R580 sends 31 and 43, and no 13
            log = faults.ears.why_no_log
            raise NotTriedError(
                f"NVML sends no XID {code}, and the kernel log can't be read: {log}"
            )
        trial.check(False, f"no XID {code}: {seen}")
        return
    ways = []
    if any(code in evidence.logged_codes for evidence in with_it):
        ways.append("kernel log")
    if any(code in evidence.events for evidence in with_it):
        ways.append("NVML event")
    trial.figure("seen_in", " and ".join(ways))
    found = [text for evidence in with_it for text in accusations(evidence)]
    trial.check(not found, f"the card is accused: {'; '.join(found)}")


def try_kernel_log(trial: Trial, faults: Faults) -> None:
    """Check the lines that the agent's reader has found."""
    if not faults.ears.has_log:
        raise NotTriedError(f"the kernel log can't be read: {faults.ears.why_no_log}")
    logged = [(one, event) for one in faults.heard for event in one.logged]
    trial.figure("lines", len(logged))
    trial.figure("xids", _codes({event.code or 0 for _one, event in logged}))
    if not logged:
        events = {code for one in faults.heard for code in one.events}
        if not events:
            raise NotTriedError(_why_silent(faults.ears))
        trial.check(False, f"NVML reported {_codes(events)}, the kernel log nothing")
        return
    if faults.watched is not None:
        bus_id = faults.watched.gpu.identity.pci_bus_id
        others = {event.device for _one, event in logged} - {bus_id}
        trial.check(not others, f"GPU is {bus_id}, the log names {sorted(others)}")
    named = [event for _one, event in logged if event.pid is not None]
    trial.figure("with_pid", len(named))
    trial.figure("with_right_pid", sum(event.pid == one.pid for one, event in logged))
    if named and not any(event.pid == one.pid for one, event in logged):
        trial.note("the driver's pids are not those of this namespace")
    trial.note(logged[0][1].text[:160])


def try_events(trial: Trial, faults: Faults) -> None:
    """Check the events that NVML has sent."""
    if not faults.ears.has_events:
        raise NotTriedError(faults.ears.why_no_events)
    events = [code for one in faults.heard for code in one.events]
    trial.figure("events", len(events))
    trial.figure("xids", _codes(set(events)))
    if events:
        return
    logged = {code for one in faults.heard for code in one.logged_codes}
    if not logged:
        raise NotTriedError(_why_silent(faults.ears))
    trial.check(False, f"the kernel log has {_codes(logged)}, NVML sent nothing")


def try_usable(trial: Trial, faults: Faults, ask: Callable[[], nvidia_smi.SmiAnswer]) -> None:
    """Compute in a process that has not touched the GPU before, and ask the driver for its verdict."""
    trial.figure("faults_before", len(faults.heard))
    if not faults.heard:
        raise NotTriedError("no fault was caused")
    rank = faults.ranks["check"]
    rank.go()
    result = rank.hear(END_S_MAX)
    code = rank.end()
    trial.check(result == "right", f"a fresh process says {result!r}: {rank.lines()[-3:]}")
    trial.check(code == 0, f"a fresh process ended with {code}")
    if faults.watched is not None:
        values = faults.watched.values("fast")
        action = values.get("recovery_action_id")
        trial.figure("recovery_action_id", "absent" if action is None else action)
        trial.check(not action, f"the driver asks for recovery action {action}")
        trial.check(not faults.watched.gpu.needs_reset, "NVML says that a reset is required")
    with contextlib.suppress(NotTriedError):
        smi = ask()
        action_text = smi.texts.get("gpu_recovery_action", "None")
        reset_text = smi.texts.get("gpu_reset_status/reset_required", "No")
        trial.check(action_text in ("None", "N/A"), f"nvidia-smi: {action_text}")
        asks_no_reset = reset_text != "Yes"
        trial.check(asks_no_reset, "nvidia-smi: a reset is required")


def _codes(codes: set[int]) -> str:
    return ", ".join(map(str, sorted(codes))) or "none"


def _why_silent(ears: Ears) -> str:
    log = ears.why_no_log or "readable, no XID in it"
    events = ears.why_no_events or "registered, none came"
    return f"no XID was reported: kernel log {log}; NVML events {events}"

"""The rendezvous backend `rankmend` of an unchanged torchrun.

PyTorch finds it by the entry point group `torchrun.handlers`: what the entry point names takes nothing and returns
a creator of a handler (torch/distributed/elastic/rendezvous/registry.py; `rankmend_torchrun`). The meeting itself stays PyTorch's c10d
rendezvous. Around it this handler

- keeps a node out that its agent knows to be bad, or that fails a pre-flight where one is requested;
- hands the newest verified checkpoint to the workers;
- reports to a journal in a process of its own (`recovery.launcher.torchrun.incident_book`) what happens.

This code runs inside torchrun. It is imported with the standard library alone, each look outside has a time limit, and
whatever goes wrong in it is logged, and training goes on as with `--rdzv-backend=c10d`.
"""

import contextlib
import json
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

from rankmend.hook.layout import ENV_CHECKPOINT, ENV_RESUME_PATH
from rankmend.parts_path import program

log = logging.getLogger(__name__)

BACKEND: Final = "rankmend"
FINDINGS_URL: Final = "http://127.0.0.1:9476"  # where an agent listens by default
AGENT_S_MAX: Final = 3.0  # on the same machine, from memory: milliseconds
AGE_S_MAX: Final = 15.0  # an older page says nothing of now, as for `rankmend check node`
PAGE_BYTES_MAX: Final = 16_000_000
SPARE_LOOK_S: Final = 5.0  # an agent looks as often
CHECKPOINT_S_MAX: Final = 60.0  # 600 GB at 10 GB/s; torchrun's join_timeout is 600 s
CHECKPOINT_MARGIN_S: Final = 15.0  # for the other nodes, from the start of Python to its end
PREFLIGHT_S_MAX: Final = {"quick": 90.0, "job": 360.0}  # their own bounds are 60 s and 5 min
_UNFIT: Final = 3  # exit code of `rankmend preflight`
_FALSE: Final = frozenset({"0", "false", "no", "off"})
_KEY: Final = "rankmend/checkpoint"
_CLI: Final = "from rankmend.cli import main; main()"
_BOOK: Final = "recovery.launcher.torchrun.incident_book"
_BOOK_END_S_MAX: Final = 10.0
_Result = TypeVar("_Result")


class BookEvent(Enum):
    """What the handler reports to the journal's process: one line of JSON each, with these as ``do``."""

    BEGIN = "begin"  # job, checkpoint_dir
    MEET = "meet"  # fault_age_s: since the workers were last seen to run; None: the first meeting
    MET = "met"  # group_rank, groups, checkpoint
    RUNNING = "running"  # world_size
    END = "end"  # outcome: the name of what ended torchrun, empty for a good end


@dataclass(frozen=True)
class MeetingSettings:
    """What `--rdzv-conf` says to rankmend."""

    checkpoint_dir: str = ""
    preflight: str = ""  # a level; empty: none
    is_vetted: bool = True
    agent_url: str = FINDINGS_URL
    has_journal: bool = True

    @classmethod
    def read(cls, conf: Mapping[str, Any]) -> "MeetingSettings":
        """Return the settings; what can't be understood is as if it weren't there, with a warning."""
        level = str(conf.get("preflight") or "")
        if level and level not in PREFLIGHT_S_MAX:
            log.warning(
                "rankmend: --rdzv-conf preflight=%s: it is quick or job; none is run", level
            )
            level = ""
        return cls(
            checkpoint_dir=str(conf.get("checkpoint_dir") or ""),
            preflight=level,
            is_vetted=_is_on(conf.get("vet")),
            agent_url=str(conf.get("agent") or FINDINGS_URL).rstrip("/"),
            has_journal=_is_on(conf.get("journal")),
        )


def _is_on(value: object) -> bool:
    return value is None or str(value).lower() not in _FALSE


def create_handler(parameters: Any) -> Any:
    """Return PyTorch's c10d handler with rankmend around its meetings."""
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import (  # noqa: PLC0415
        create_backend,
    )
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (  # noqa: PLC0415
        create_handler as create_inner,
    )

    backend, store = create_backend(parameters)
    return MeetingHandler(create_inner(store, backend, parameters), parameters)


class MeetingHandler:
    """Everything that is not here is the inner handler's: PyTorch's releases differ in what they ask for."""

    def __init__(self, inner: Any, parameters: Any) -> None:
        self._inner = inner
        self._has_spares = parameters.min_nodes < parameters.max_nodes
        self._settings = _quietly(
            lambda: MeetingSettings.read(parameters.config), MeetingSettings(has_journal=False)
        )
        self._meetings = 0
        self._seen_running_s: float | None = None
        self._is_running_told = True
        self._book = IncidentLine() if self._settings.has_journal else None
        self._tell(
            BookEvent.BEGIN,
            job=str(parameters.run_id),
            checkpoint_dir=self._settings.checkpoint_dir,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get_backend(self) -> str:
        return BACKEND

    def next_rendezvous(self) -> Any:
        """Meet the other nodes, once this one may."""
        seen_s = self._seen_running_s
        is_first = self._meetings == 0
        age_s = None if is_first or seen_s is None else time.monotonic() - seen_s
        self._tell(BookEvent.MEET, is_first=is_first, fault_age_s=age_s)
        self._vet(is_first=is_first)
        self._meetings += 1
        met = self._inner.next_rendezvous()
        path = _quietly(lambda: self._hand_over(met), "")
        rank, groups = _quietly(lambda: _place(met)[1:], (0, 1))
        self._tell(BookEvent.MET, group_rank=rank, groups=groups, checkpoint=path)
        self._is_running_told = False
        return met

    def num_nodes_waiting(self) -> int:
        """Return the inner handler's number; torchrun asks whenever it has seen all its workers run."""
        self._seen_running_s = time.monotonic()
        if not self._is_running_told:
            self._is_running_told = True
            self._tell(BookEvent.RUNNING, world_size=_quietly(_world_size, 0))
        waiting: int = self._inner.num_nodes_waiting()
        return waiting

    def shutdown(self) -> bool:
        kind = sys.exc_info()[0]
        self._tell(BookEvent.END, outcome="" if kind is None else kind.__name__)
        if self._book is not None:
            _quietly(self._book.close, None)
            self._book = None
        is_shut: bool = self._inner.shutdown()
        return is_shut

    def _tell(self, event: BookEvent, **fields: object) -> None:
        book = self._book
        if book is None:
            return
        try:
            book.tell(event, fields)
        except Exception as error:  # noqa: BLE001 - its process has ended and has logged why
            _pass_on(error)
            self._book = None

    # This node.

    def _vet(self, *, is_first: bool) -> None:
        """Return once this node may join; raise where it must stay out and nobody can take its place.

        A node is kept out of a job that runs already only where the others can go on without it.
        """
        if is_first and self._settings.preflight:
            failed = _quietly(lambda: run_preflight(self._settings.preflight), "")
            if failed:
                self._keep_out(failed)
        if not self._settings.is_vetted:
            return
        finding = _quietly(lambda: known_bad(self._settings.agent_url), "")
        if finding and not self._has_spares and not is_first:
            log.warning(
                "rankmend: this node has a critical finding, and the job can't go on without it: %s",
                finding,
            )
        elif finding and not self._has_spares:
            self._keep_out(finding)
        elif finding:
            self._wait_as_spare(finding)

    def _keep_out(self, finding: str) -> None:
        from torch.distributed.elastic.rendezvous import RendezvousError  # noqa: PLC0415

        raise RendezvousError(
            f"rankmend keeps {socket.gethostname()} out of this job: {finding}. `rankmend check node` shows more. "
            "Mend the node, silence the finding, or start without this check: --rdzv-conf vet=0"
        )

    def _wait_as_spare(self, finding: str) -> None:
        """Wait until the finding has ended; end well where the job ends before that."""
        log.warning(
            "rankmend: this node waits as a spare while it has a critical finding: %s", finding
        )
        while True:
            time.sleep(SPARE_LOOK_S)
            if self._is_over():
                log.warning("rankmend: the job has ended while this node waited as a spare")
                # PyTorch's own RendezvousGracefulExitError ends torchrun 2.13 with an AttributeError and exit code 1.
                raise SystemExit(0)
            if not _quietly(lambda: known_bad(self._settings.agent_url), ""):
                log.warning("rankmend: the finding has ended: this node joins")
                return

    def _is_over(self) -> bool:
        """Return whether nobody meets any more: closed, or the node with the store has ended."""
        try:
            return bool(self._inner.is_closed())
        except Exception as error:  # noqa: BLE001 - a store that is away is the end of the job, too
            _pass_on(error)
            return True

    # The checkpoint.

    def _hand_over(self, met: Any) -> str:
        """Put the checkpoint that all nodes begin from into the workers' environment, and return it.

        One node looks and the others receive what it has found, so that no two begin from different ones.
        """
        for name in (ENV_CHECKPOINT, ENV_RESUME_PATH):
            os.environ.pop(name, None)
        if not self._settings.checkpoint_dir:
            return ""
        store, rank, groups = _place(met)
        if rank == 0:
            path = _quietly(lambda: newest_checkpoint(self._settings.checkpoint_dir), "")
            if groups > 1:
                store.set(_KEY, path)
        else:
            store.wait([_KEY], timedelta(seconds=CHECKPOINT_S_MAX + CHECKPOINT_MARGIN_S))
            path = store.get(_KEY).decode()
        if path:
            os.environ[ENV_CHECKPOINT] = os.environ[ENV_RESUME_PATH] = path
        return path


class IncidentLine:
    """The line to the process that keeps the journal. It is started at the first word, and never waited for."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def tell(self, event: BookEvent, fields: Mapping[str, object]) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, *program(_BOOK)],
                stdin=subprocess.PIPE,
                start_new_session=True,  # a signal to torchrun's group is none to the journal
            )
            assert self._process.stdin is not None, "a pipe"
            os.set_blocking(self._process.stdin.fileno(), False)
        assert self._process.stdin is not None, "a pipe"
        line = json.dumps({"do": event.value, **fields}).encode() + b"\n"
        # Below PIPE_BUF: whole, or not at all. A full pipe loses the line, and training goes on.
        os.write(self._process.stdin.fileno(), line)

    def close(self) -> None:
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        self._process.wait(_BOOK_END_S_MAX)


# What is looked at.


def known_bad(agent_url: str) -> str:
    """Return the critical finding for which this node's agent would have it out of use; empty: none is known.

    Where no agent answers nothing is known of the node, and nothing is held against it.
    """
    from rankmend.errors import SourceError  # noqa: PLC0415

    try:
        return _within(AGENT_S_MAX, lambda: _read_finding(agent_url))
    except (SourceError, TimeoutError) as error:
        log.info("rankmend: nothing is known of this node: %s", error)
        return ""


def _read_finding(agent_url: str) -> str:
    from detectors.finding import Action, Severity  # noqa: PLC0415
    from rankmend.agent_page import read_agent  # noqa: PLC0415

    body = read_agent(
        f"{agent_url}/api/v1/findings", bytes_max=PAGE_BYTES_MAX, timeout_s=AGENT_S_MAX
    )
    page = json.loads(body)
    if not (page["looks"] > 0 and 0 <= page["age_s"] <= AGE_S_MAX):
        return ""
    for found in page["findings"]:
        is_critical = found["severity"] == Severity.CRITICAL.value and not found["is_silenced"]
        if is_critical and Action(found["action"]).ends_use:
            return f"{str(found['summary'])[:300]} ({str(found['id'])[:200]})"
    return ""


def run_preflight(level: str) -> str:
    """Return why this node fails a pre-flight; empty: it passed, or could not be checked."""
    done = _run_cli(("preflight", level, "--json"), PREFLIGHT_S_MAX[level])
    return f"it failed the {level} pre-flight" if done.returncode == _UNFIT else ""


def newest_checkpoint(folder: str) -> str:
    """Return the newest checkpoint that was read to its end and is whole; empty: there is none."""
    words = ("checkpoints", folder, "--json", "--timeout", f"{CHECKPOINT_S_MAX:.0f}s")
    done = _run_cli(words, CHECKPOINT_S_MAX + CHECKPOINT_MARGIN_S / 2)
    return str(json.loads(done.stdout)["restores"] or "")


def _run_cli(words: tuple[str, ...], timeout_s: float) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [sys.executable, "-c", _CLI, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=timeout_s,
        check=False,
    )


def _place(met: Any) -> tuple[Any, int, int]:
    """Return store, group rank and number of groups; a tuple before PyTorch 2.4."""
    if isinstance(met, tuple):
        store, rank, groups = met
        return store, rank, groups
    return met.store, met.rank, met.world_size


def _world_size() -> int:
    """Return the number of ranks of the job, from the environment of a worker; 0: not known."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    for pid in children.split():
        with contextlib.suppress(OSError):  # it has ended
            for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if entry.startswith(b"WORLD_SIZE="):
                    return int(entry.partition(b"=")[2])
    return 0


# Guards.


def _quietly(work: Callable[[], _Result], otherwise: _Result) -> _Result:
    """Return what this gives, or the other value where it fails: no error of ours ends a training."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - as said above, and logged
        _pass_on(error)
        log.warning("rankmend: %s: %s", type(error).__name__, str(error)[:500])
        return otherwise


def _pass_on(error: Exception) -> None:
    """Raise what is no error: torchrun's signal handler raises an exception of this name wherever it is."""
    if type(error).__name__ == "SignalException":
        raise error


def _within(limit_s: float, work: Callable[[], str]) -> str:
    """Return what this gives within a time limit; a thread that hangs is left behind."""
    results: queue.SimpleQueue[str | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put(work())
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            results.put(error)

    threading.Thread(target=run, name="rankmend-agent", daemon=True).start()
    try:
        result = results.get(timeout=limit_s)
    except queue.Empty:
        raise TimeoutError(f"no answer within {limit_s:g} s") from None
    if isinstance(result, Exception):
        raise result
    return result

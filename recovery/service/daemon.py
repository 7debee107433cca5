"""`rankmend controller run`: the service until a signal ends it, and its notices to the service manager.

READY is sent when the jobs are adopted and the port listens. The event loop pings the watchdog, and
only while the deciding thread goes round. SIGTERM closes the journals and stops no training. A
renewed certificate takes effect without a signal; all else that a reload can change takes effect at
SIGHUP.
"""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from detectors.wording import counted
from rankmend.clock import Clock, SystemClock
from rankmend.errors import ConfigError, RankmendError
from rankmend.notify import Notifier
from rankmend.renewed_files import LOOK_S, Marks, marks_of
from recovery.controller.cluster.cluster_limits_file import PolicyFile
from recovery.service import controller_config as configuration
from recovery.service.bmc.bmcs import BmcDirectory
from recovery.service.controller_config import Config
from recovery.service.server import Service
from recovery.service.sign_in.identity_provider import open_provider
from recovery.service.tokens import Tokens, narrowed

log = logging.getLogger(__name__)

GROWTH_RATIO: Final = 0.5  # share of the memory after the last look that cycles may take
# What 1,600 connections take: a look at a service with 2,000 nodes takes 0.3 s.
GROWTH_BYTES_MIN: Final = 128 * 1024 * 1024
_STATM: Final = Path("/proc/self/statm")

_LOOK_S: Final = 1.0
_NOT_USED: Final = "renewed certificate is not used; the old one stays in force"
_STARTING_S: Final = 0.02
# How long the deciding thread waits for the interpreter while another thread makes a page; Python's default is 5 ms. With 2,000 nodes
# and 20 viewers its mean turn is 1.1 times as long by the default, and no longer with this (bench/console.py).
_SWITCH_S: Final = 0.001
DESCRIPTORS: Final = 65_536  # 25,000 connections and 500 jobs with 6 each, and room


def read_resident_bytes() -> int:
    """Return how much memory this process holds (proc(5): statm, second field, in pages)."""
    return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Cycles:
    """Looks for cycles of dead objects once memory has grown by so much since the last look.

    Reports and requests die by their count. Python's own rule looks for cycles at every so many new
    objects, and the newest reports of 80,000 ranks are a quarter of a million that live for
    seconds: with 9,900 nodes that took a fifth of the core, in pauses of 0.5 to 7 s, and found
    nothing. Cycles are what closed connections and failures leave.
    """

    def __init__(
        self,
        read_bytes: Callable[[], int] = read_resident_bytes,
        collect: Callable[[], object] = gc.collect,
    ) -> None:
        self._read_bytes = read_bytes
        self._collect = collect
        self._known_bytes = read_bytes()

    def look(self) -> bool:
        """Collect if it is due; return whether it was."""
        known, now = self._known_bytes, self._read_bytes()
        if now - known < max(GROWTH_BYTES_MIN, GROWTH_RATIO * known):
            self._known_bytes = min(known, now)  # what it shrinks by may not be filled with cycles
            return False
        self._collect()
        self._known_bytes = self._read_bytes()
        return True


def read(path: Path) -> tuple[Config, Tokens | None, PolicyFile]:
    """Return configuration, tokens and policy, or raise ConfigError and leave all as it is."""
    config = configuration.load(path)
    if config.tls is not None:
        configuration.make_context(config.tls)
    BmcDirectory(config.bmcs)
    open_provider(config, socket.gethostname(), SystemClock())
    tokens, policy = configuration.read_tokens_of(config), configuration.read_policy_of(config)
    _warn_of_older_tokens(config)
    if policy.policy.power_off_to_fence and not config.bmcs:
        raise ConfigError(
            f"{config.policy_file}: [policy] power_off_to_fence is true, but {path} names no BMC: add [[bmcs]]"
        )
    return config, tokens, policy


def _warn_of_older_tokens(config: Config) -> None:
    """Log which tokens of an older release's file see less than there."""
    entries = narrowed(Path(config.tokens_file)) if config.tokens_file else []
    if entries:
        log.warning(
            "tokens with the role read see their own subject's jobs only; fleet-read shows everybody's",
            extra={
                "file": config.tokens_file,
                "tokens": ", ".join(f"{entry.id} of {entry.subject}" for entry in entries[:50]),
            },
        )


def run(path: Path) -> int:
    """Run the controller; return the exit code."""
    import uvloop  # noqa: PLC0415 - of the extra `controller`, and doctor reads a controller's configuration without it

    config, tokens, policy = read(path)
    _raise_descriptors(config)
    clock = SystemClock()
    marks = marks_of(configuration.tls_files(config))  # before the service reads them
    service = Service(config, clock, tokens, policy)
    notifier = Notifier.from_environment(os.environ, os.getpid())
    gc.collect()
    gc.freeze()  # modules live as long as the service
    gc.disable()  # `cycles` looks when memory has grown
    sys.setswitchinterval(_SWITCH_S)
    try:
        return uvloop.run(_Daemon(service, notifier, clock, lambda: read(path), marks).run())
    finally:
        notifier.close()


def _raise_descriptors(config: Config) -> None:
    """Raise the limit of descriptors as far as it goes, and warn where that is too little."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    needed = config.limits.connections + 6 * config.jobs.at_once_max + 100
    if max(soft, wanted) < needed:
        fields = {"limit": max(soft, wanted), "needed": needed}
        log.warning("too few descriptors for limits.connections and jobs.at_once_max", extra=fields)


class _Daemon:
    def __init__(
        self,
        service: Service,
        notifier: Notifier,
        clock: Clock,
        read_again: Callable[[], tuple[Config, Tokens | None, PolicyFile]],
        certificate_marks: Marks,
    ) -> None:
        self._service = service
        self._notifier = notifier
        self._clock = clock
        self._read_again = read_again
        self._should_stop = asyncio.Event()
        self._is_alive = True
        self._one_reload = asyncio.Lock()
        self._certificate_marks = certificate_marks
        self._renewal_logged = ""  # why renewed certificates are not used

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        reloads: set[asyncio.Task[None]] = set()

        def reload() -> None:
            task = loop.create_task(self._reload())
            reloads.add(task)
            task.add_done_callback(reloads.discard)

        loop.add_signal_handler(signal.SIGHUP, reload)
        # the command has blocked it; before any thread starts and would inherit that
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        began_s = self._clock.now_s()
        renewing: asyncio.Task[None] | None = None
        try:
            await self._service.start()
            worker = self._service.worker
            while not worker.is_taken_up and worker.is_alive and not self._should_stop.is_set():
                await asyncio.sleep(_STARTING_S)
            if not self._should_stop.is_set():
                jobs = len(worker.jobs.running)
                fields = {
                    "port": self._service.port,
                    "listen": self._service.config.listen,
                    "jobs": jobs,
                    "after_s": round(self._clock.now_s() - began_s, 3),
                }
                log.info("controller started", extra=fields)
                self._notifier.ready(f"{counted(jobs, 'job')} resumed")
            renewing = loop.create_task(self._take_renewed())
            return await self._watch()
        finally:
            self._notifier.stopping()
            if renewing is not None:
                renewing.cancel()
            await self._service.stop()
            log.info("controller stopped")

    async def _watch(self) -> int:
        """Ping until a signal comes, or until the deciding thread has died."""
        ping_s = self._notifier.ping_s
        wait_s = _LOOK_S if ping_s is None else min(_LOOK_S, ping_s)
        cycles = Cycles()
        while not self._should_stop.is_set():
            if not self._service.worker.is_alive:
                log.error(
                    "the deciding thread died: the controller exits so that systemd restarts it"
                )
                return 1
            is_alive = self._service.is_alive
            if is_alive:
                self._notifier.ping()
            if self._is_alive and not is_alive:
                log.error("the deciding thread is stuck; not pinging the watchdog")
            self._is_alive = is_alive
            cycles.look()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._should_stop.wait(), wait_s)
        return 0

    def _stop(self, number: int) -> None:
        log.info("stopping", extra={"signal": signal.Signals(number).name})
        self._should_stop.set()

    async def _take_renewed(self) -> None:
        """Take up the certificate's files once they have changed; until they can be used, keep the old."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_S)
            async with self._one_reload:
                service = self._service
                files = configuration.tls_files(service.config)
                marks = await loop.run_in_executor(None, marks_of, files)
                if marks == self._certificate_marks:
                    continue
                fields = {"files": ", ".join(files)}
                try:
                    await service.reload(service.config, service.api.doorman.tokens, service.policy)
                except (RankmendError, OSError) as error:
                    if self._renewal_logged != str(error):
                        self._renewal_logged = fields["error"] = str(error)
                        log.error(_NOT_USED, extra=fields)  # noqa: TRY400
                else:
                    self._certificate_marks, self._renewal_logged = marks, ""
                    log.info("renewed certificate is in force", extra=fields)

    async def _reload(self) -> None:
        async with self._one_reload:
            await self._read_and_reload()

    async def _read_and_reload(self) -> None:
        """Read the configuration again; a wrong configuration changes nothing."""
        self._notifier.reloading()
        loop = asyncio.get_running_loop()
        try:
            config, tokens, policy = await loop.run_in_executor(None, self._read_again)
            files = configuration.tls_files(config)
            marks = await loop.run_in_executor(None, marks_of, files)
            for name in Config.__struct_fields__:
                old, new = getattr(self._service.config, name), getattr(config, name)
                if old != new and name not in configuration.RELOADABLE:
                    fields = {"key": name, "kept": old, "wanted": new}
                    log.warning("this setting needs a restart", extra=fields)
            if (config.listen, config.state_dir) != (
                self._service.config.listen,
                self._service.config.state_dir,
            ):
                raise ConfigError("listen and state_dir need a restart")
            await self._service.reload(config, tokens, policy)
            self._certificate_marks = marks
            status = "configuration reloaded"
            log.info(status)
        except (RankmendError, OSError) as error:
            fields = {"error": str(error)}
            log.error("configuration not reloaded; the old one stays in force", extra=fields)  # noqa: TRY400
            status = f"configuration not reloaded: {error}"
        self._notifier.ready(status)

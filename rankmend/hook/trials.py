"""Tries a package in a disposable child before the fork server imports it for all ranks.

What opens a descriptor, starts a process or a thread, or reaches a device at import would be shared between ranks, so
such a package is left out and each rank imports it by itself.

Standard library and Python 3.8 only.
"""

import importlib
import json
import os
import select
import signal
import sys
import threading
import time
import traceback

from rankmend.hook import forking, import_order, layout

_NICE = 10  # of a trial, which nobody waits for
# Character devices without state: each process may hold its own descriptor or a shared one.
_HARMLESS = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
# Modules that say in a forked child that their device was initialized before the fork.
_DEVICES = ("torch.cuda", "torch.xpu", "torch.mtia")


class ForkFault(str):
    """Why a fork would break a package; a process that imports it for one rank alone may have it."""


# Descriptors of these may not be shared, but each process may open its own. A standby must not hold memory of a device.
_OWN_DESCRIPTORS = ("socket:", "pipe:", "anon_inode:")


def worst(*faults):
    """Return one of these reasons, None if there is none; a `ForkFault` only where all are."""
    found = [fault for fault in faults if fault]
    return min(found, key=lambda fault: isinstance(fault, ForkFault)) if found else None


def try_package(modules, try_s_max, variables):
    """Import a package in a disposable child; return (why it is left out or None, modules to pass over).

    The reason is a `ForkFault` where it is one.

    Python's own modules that this process has already are not tried.
    """
    if all(name in sys.modules for name, _origin in modules):
        return None, []
    reported, tell = os.pipe()
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        _run_trial(modules, tell, server, variables)
    os.close(tell)
    verdict = _read_verdict(reported, try_s_max)
    os.close(reported)
    _kill_trial(pid)
    forking.reap(pid)
    if verdict is None:
        return "ends the process at import, or takes over %g s" % try_s_max, []
    reason = verdict["reason"]
    return ForkFault(reason) if verdict["by_fork"] else reason, verdict["missing"]


def _kill_trial(pid):
    """Kill a trial, and what its imports have started: nobody else knows of that."""
    for kill in (os.killpg, os.kill):  # a group, unless it has died before it made one
        try:
            kill(pid, signal.SIGKILL)
        except OSError:
            pass


def _read_verdict(reported, try_s_max):
    deadline_s = time.monotonic() + try_s_max
    data = b""
    while True:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not select.select([reported], [], [], left_s)[0]:
            return None
        piece = os.read(reported, 65536)
        data += piece
        if data.endswith(b"\n"):  # a process that the import has started may keep the pipe open
            return json.loads(data.decode("ascii"))
        if not piece:
            return None


def _run_trial(modules, tell, server, variables):
    """Be the disposable child."""
    try:
        os.setpgid(0, 0)
        forking.die_with(server)
        os.nice(_NICE)
        try:
            before = Before()
            missing = import_all(modules)
            reason = worst(before.fault(), variables.fault(before.loaded), before.missed())
        except BaseException as error:
            reason, missing = describe(error), []
        by_fork = isinstance(reason, ForkFault)
        verdict = {"reason": reason, "missing": missing, "by_fork": by_fork}
        os.write(tell, json.dumps(verdict).encode("ascii") + b"\n")
    finally:
        os._exit(0)


class _WatchedVariables(dict):  # type: ignore[type-arg]
    """The variables of this process; notes which of those that it lacks and ranks have are read."""

    def __init__(self, variables):
        dict.__init__(self, variables)
        self.missed = []

    def __missing__(self, key):
        name = os.fsdecode(key)
        if name in layout.RANK_VARIABLES:
            self.missed.append(name)
        raise KeyError(key)


class ImportFaultError(Exception):
    """A package must not be shared; says why, with the package as the subject."""


def describe(error):
    """Return why a package is left out whose import has ended so."""
    if isinstance(error, ImportFaultError):
        return str(error)
    text = traceback.format_exception_only(type(error), error)[-1].strip()
    return "fails at import: %s" % text[: forking.REASON_BYTES_MAX]


def import_all(modules):
    """Import [name, origin], and return the names of those that can't be; raise `ImportFaultError`.

    What can't be imported by its name, or only in another order, is each rank's own task.
    """
    missing = []
    for name, origin in modules:
        try:
            module = importlib.import_module(name)
        except Exception:
            missing.append(name)
            continue
        if getattr(getattr(module, "__spec__", None), "origin", origin) != origin:
            raise ImportFaultError("has another file for %s here than in the ranks" % name)
    return missing


class Before:
    """What this process was before some imports. From then on it notes which variables they miss."""

    def __init__(self):
        self._watched = _WatchedVariables(os.environ._data)
        os.environ._data = os.environb._data = self._watched
        self._pid = os.getpid()
        self.renew()

    def renew(self):
        """Compare with what is now."""
        self._descriptors = _descriptors()
        self.loaded = set(sys.modules)
        self._folder = os.getcwd()
        self._tasks = len(os.listdir("/proc/self/task"))

    def fault(self, is_alone=True):
        """Return why what was imported since must not be shared, or None.

        ``is_alone``: look at threads and devices by a fork in any case, else only where there are more threads.
        """
        if os.getpid() != self._pid:
            os._exit(0)  # a child that an import has forked, and let go on
        forks = is_alone or len(os.listdir("/proc/self/task")) > self._tasks
        return worst(
            _shared_descriptor(self._descriptors),
            _own_child(),
            _foreign_module(self.loaded),
            broken_by_fork() if forks else None,
            os.getcwd() != self._folder and "changes the working folder at import",
        )

    def missed(self):
        """Return which variable was missed since that a rank has, as a reason, or None."""
        names = self._watched.missed
        return "reads %s at import, which only a rank has" % names[0] if names else None

    def end(self):
        """Note no more."""
        os.environ._data = os.environb._data = dict(self._watched)


def _descriptors():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink("/proc/self/fd/" + name)
        except OSError:  # the listing's own
            pass
    return found


def _shared_descriptor(before):
    opened = [
        target
        for name, target in _descriptors().items()
        if before.get(name) != target and target not in _HARMLESS
    ]
    return worst(
        *(
            (ForkFault if target.startswith(_OWN_DESCRIPTORS) else str)(
                "opens %s at import" % target
            )
            for target in opened
        )
    )


def _own_child():
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return "starts a process at import"


def _foreign_module(loaded):
    """Return a reason if a module of the user's own came along.

    PyTorch loads `rankmend_torchrun`, which an editable install leaves in its own folder.
    """
    for name in set(sys.modules) - loaded - {"rankmend_torchrun"}:
        spec = getattr(sys.modules[name], "__spec__", None)
        origin = getattr(spec, "origin", None)
        if getattr(spec, "has_location", False) and not import_order.is_installed(origin):
            return "imports %s, which is not an installed package" % name
    return None


def broken_by_fork():
    """Return which threads or devices of this process a fork would break, or None.

    Known to be safe are threads that their library stops in its own pthread_atfork handler and starts again
    when it needs them: OpenBLAS's pool, which `import numpy` starts on several cores. They are known by
    that: they are gone when a fork has returned. All others would be missing in a forked rank without
    their library knowing.
    """
    reported, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        broken = [name for name in _DEVICES if _is_broken_by_fork(name)]
        os.write(tell, ",".join(broken).encode("ascii"))
        os._exit(0)
    os.close(tell)
    broken = os.read(reported, forking.REASON_BYTES_MAX).decode("ascii")
    os.close(reported)
    forking.reap(pid)
    if broken:
        return "initializes a device at import (%s)" % broken
    if threading.active_count() > 1:
        names = ", ".join(
            item.name for item in threading.enumerate() if item is not threading.main_thread()
        )
        return ForkFault("starts a thread at import (%s)" % names)
    left = [name for name in os.listdir("/proc/self/task") if int(name) != os.getpid()]
    return ForkFault("starts a thread at import that doesn't end at a fork") if left else None


def _is_broken_by_fork(name):
    try:
        return bool(sys.modules[name]._is_in_bad_fork())
    except (KeyError, AttributeError):
        return False

"""The fork server: has imported what the ranks import, and forks ranks in milliseconds.

`rankmend run --fork-server` keeps one on each node, under the ranks' interpreter. It imports the modules
of which the ranks have told at their first step (`rankmend.hook.imports`), each package in a disposable child
first: what opens a descriptor, starts a process or a thread, or reaches a device at import would be shared
between ranks, so that package is left out and each rank imports it by itself.

How a process of it becomes a rank: `rankmend.hook.forking`.

    python -u -c "...; from rankmend.hook.fork_server import main; main()" LIST TRY_S_MAX RANKS   (stdin: the launcher's socket)

Standard library and Python 3.8 only.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback

from rankmend.hook import becoming, forking, import_order, imports, layout, replay

TRIES_S_MAX = (
    900.0  # after so long no other package is tried: a server without it is better than none
)
_NICE = 10  # of a trial, which nobody waits for
_KILLED_FIRST = "1000"  # Documentation/filesystems/proc.rst: the highest
# Character devices without state: each process may hold its own descriptor or a shared one.
_HARMLESS = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
# Modules that say in a forked child that their device was initialized before the fork.
_DEVICES = ("torch.cuda", "torch.xpu", "torch.mtia")


def main():
    """Import, report to the launcher, and fork ranks until the launcher is gone."""
    guardian_pid = os.getppid()
    channel = _take_channel()
    oom_score = _become_killed_first()
    with open(sys.argv[1], encoding="ascii") as file:
        told = json.load(file)
    try:
        prepared = Prepared(told, float(sys.argv[2]), oom_score)
    except UnforkableError as error:
        forking.tell(channel, failed=str(error))
        os._exit(0)
    becoming.load()
    gc.collect()  # here once, not in each rank
    gc.freeze()  # a collection in a rank would write to, and so copy, what all of them share
    forking.tell(channel, left_out=prepared.left_out, imported=prepared.count)
    rank = forking.serve(channel, guardian_pid, prepared, int(sys.argv[3]))
    # Only a forked rank comes here: the script runs with nothing of ours on the stack but this.
    becoming.run(rank)


def _take_channel():
    """Return the launcher's socket, and leave /dev/null in its place as standard input."""
    channel = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return channel


def _become_killed_first():
    """Have the kernel kill this process before any rank; return the score of a rank, None: unchanged.

    A process may always raise its score, and without a privilege lower it again to what it was.
    """
    try:
        with open(forking.OOM_SCORE_FILE, encoding="ascii") as file:
            before = file.read().strip()
        forking.write_oom_score(_KILLED_FIRST)
    except OSError:
        return None
    return before


class UnforkableError(Exception):
    """No rank of this job can be forked; says why."""


# Preparing.


class Prepared:
    """The imports of this process, and what must hold for them to be a rank's."""

    def __init__(self, told, try_s_max, oom_score):
        """Import what the launcher names; ``told``: as `rankmend.hook.replay` says.

        ``try_s_max``: seconds to try one package. ``oom_score``: what a rank's is.
        """
        self.left_out = {}  # package: reason
        self.count = 0
        self.oom_score = oom_score
        until_s = time.monotonic() + TRIES_S_MAX
        variables = replay.Replay(told, imports.started_with())
        refusal = variables.refusal()
        if refusal is not None:
            raise UnforkableError(refusal)
        self._stamps = {}
        for package, modules in variables.packages(self.left_out):
            if time.monotonic() >= until_s:
                self.left_out[package] = "was not tried within %d s" % TRIES_S_MAX
                continue
            missing = _try(package, modules, try_s_max, self.left_out, variables)
            if missing is None:
                continue
            for name, _origin in modules:
                if name not in missing:
                    importlib.import_module(name)
                    self.count += 1
            self._note_stamps(modules)
        self._stamps.update({path: _stamp(path) for path in (sys.executable, *_package_folders())})
        self.environment = variables.environment()
        self._check(told["environment"])

    def stale(self):
        """Return the path of a package that has changed since it was imported, or None."""
        for path, stamp in self._stamps.items():
            if _stamp(path) != stamp:
                return path
        return None

    def _note_stamps(self, modules):
        for name, origin in modules:
            if "." not in name and os.path.isabs(origin):
                self._stamps[origin] = _stamp(origin)

    def _check(self, environment):
        """Refuse a script that changes variables nobody knows when: a library may read them at import."""
        ours = {name: after for name, _before, after in self.environment}
        for name, value in environment.items():
            if ours.get(name) != value:
                raise UnforkableError(
                    "the script changes %s, which a library may read at import" % name
                )
        threads = len(os.listdir("/proc/self/task")) - 1
        if threads and _threads_after_fork():
            raise UnforkableError(
                "its imports run %d threads together, though none does alone" % threads
            )


def _package_folders():
    return [path for path in sys.path if path.endswith(("/site-packages", "/dist-packages"))]


def _stamp(path):
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_mtime_ns)


def _try(package, modules, try_s_max, left_out, variables):
    """Import a package in a disposable child; return the modules to pass over, None: all of it.

    Python's own modules that this process has already are not tried.
    """
    if all(name in sys.modules for name, _origin in modules):
        return ()
    told, tell = os.pipe()
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        _run_trial(modules, tell, server, variables)
    os.close(tell)
    verdict = _read_verdict(told, try_s_max)
    os.close(told)
    _kill_trial(pid)
    forking.reap(pid)
    if verdict is None:
        left_out[package] = "ends the process at import, or takes over %g s" % try_s_max
    elif "reason" in verdict:
        left_out[package] = verdict["reason"]
    else:
        return verdict["missing"]
    return None


def _kill_trial(pid):
    """Kill a trial, and what its imports have started: nobody else knows of that."""
    for kill in (os.killpg, os.kill):  # a group, unless it has died before it made one
        try:
            kill(pid, signal.SIGKILL)
        except OSError:
            pass


def _read_verdict(told, try_s_max):
    deadline_s = time.monotonic() + try_s_max
    data = b""
    while True:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not select.select([told], [], [], left_s)[0]:
            return None
        piece = os.read(told, 65536)
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
            verdict = _trial(modules, variables)
        except BaseException as error:
            text = traceback.format_exception_only(type(error), error)[-1].strip()
            verdict = {"reason": "fails at import: %s" % text[: forking.REASON_BYTES_MAX]}
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


def _trial(modules, variables):
    watched = _WatchedVariables(os.environ._data)
    os.environ._data = os.environb._data = watched
    descriptors, loaded = _descriptors(), set(sys.modules)
    folder, parent = os.getcwd(), os.getpid()
    missing = []
    for name, origin in modules:
        try:
            module = importlib.import_module(name)
        except (
            Exception
        ):  # not importable by its name, or only in another order: each rank's own task
            missing.append(name)
            continue
        if getattr(getattr(module, "__spec__", None), "origin", origin) != origin:
            return {"reason": "has another file for %s here than in the ranks" % name}
    if os.getpid() != parent:
        os._exit(0)  # a child that an import has forked, and let go on
    reason = (
        _shared_descriptor(descriptors)
        or _own_child()
        or _foreign_module(loaded)
        or _threads_after_fork()
        or (os.getcwd() != folder and "changes the working folder at import")
        or variables.fault(loaded)
        or (watched.missed and "reads %s at import, which only a rank has" % watched.missed[0])
    )
    return {"reason": reason} if reason else {"missing": missing}


def _descriptors():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink("/proc/self/fd/" + name)
        except OSError:  # the listing's own
            pass
    return found


def _shared_descriptor(before):
    for name, target in _descriptors().items():
        if before.get(name) != target and target not in _HARMLESS:
            return "opens %s at import" % target
    return None


def _own_child():
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return "starts a process at import"


def _foreign_module(loaded):
    """Return a reason if a module of the user's own came along."""
    for name in set(sys.modules) - loaded:
        spec = getattr(sys.modules[name], "__spec__", None)
        origin = getattr(spec, "origin", None)
        if getattr(spec, "has_location", False) and not import_order.is_installed(origin):
            return "imports %s, which is not an installed package" % name
    return None


def _threads_after_fork():
    """Return which threads or devices of this process a fork would break, or None.

    Known to be safe are threads that their library stops in its own pthread_atfork handler and starts again
    when it needs them: OpenBLAS's pool, which `import numpy` starts on several cores. They are known by
    that: they are gone when a fork has returned. All others would be missing in a forked rank without
    their library knowing.
    """
    if threading.active_count() > 1:
        names = ", ".join(
            one.name for one in threading.enumerate() if one is not threading.main_thread()
        )
        return "starts a thread at import (%s)" % names
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        broken = [name for name in _DEVICES if _is_broken_by_fork(name)]
        os.write(tell, ",".join(broken).encode("ascii"))
        os._exit(0)
    os.close(tell)
    broken = os.read(told, forking.REASON_BYTES_MAX).decode("ascii")
    os.close(told)
    forking.reap(pid)
    if broken:
        return "initializes a device at import (%s)" % broken
    left = [one for one in os.listdir("/proc/self/task") if int(one) != os.getpid()]
    return "starts a thread at import that doesn't end at a fork" if left else None


def _is_broken_by_fork(name):
    try:
        return bool(sys.modules[name]._is_in_bad_fork())
    except (KeyError, AttributeError):
        return False

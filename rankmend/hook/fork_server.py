"""The fork server: has imported what the ranks import, and forks ranks in milliseconds.

`rankmend run` keeps one on each node, under the ranks' interpreter. It imports the modules of which the ranks have told
at their first step (`rankmend.hook.imports`). It gets verdicts, of another server or a guess, on what to leave out, and looks at
itself after each package: at the first for which they don't hold it ends, and says so. Without verdicts it tries each package
in a disposable child first (`rankmend.hook.trials`). In a script's first run it gets the import statements at the head of
the script instead, and guesses that it may follow them.

How a process of it becomes a rank: `rankmend.hook.forking`.

    python -u -c "...; from rankmend.hook.fork_server import main; main()" LIST TRY_S_MAX RANKS ROOM   (stdin: the launcher's socket)

Standard library and Python 3.8 only.
"""

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import signal
import stat
import sys
import time

from rankmend.hook import (
    becoming,
    forking,
    huge_pages,
    import_order,
    imports,
    replay,
    trials,
)

# After so long no other package is tried: a server without it is better than none.
TRIES_S_MAX = 900.0
LOST_SHARE_MAX = 0.5  # of the modules, Python's own aside: if more is left out, forks save little
_KILLED_FIRST = "1000"  # Documentation/filesystems/proc.rst: the highest


def main():
    """Import, report to the launcher, and fork ranks until the launcher is gone."""
    guardian_pid = os.getppid()
    becoming.show_as((sys.executable, "rankmend.hook.fork_server", *sys.argv[1:-1]))
    channel = becoming.take_channel()
    oom_score = become_killed_first()
    path = sys.argv[1]
    with open(path, encoding="ascii") as file:
        reported = json.load(file)
    began_s = time.monotonic()
    try:
        prepared = Prepared(reported, oom_score)
        with _without_collections():
            prepared.import_to_fork(float(sys.argv[2]))
        prepared.check_forks(can_stand_by=prepared.keep_verdicts(path + ".verdicts"))
    except UnforkableError as error:
        forking.tell(channel, failed=str(error), can_stand_by=error.can_stand_by)
        os._exit(0)
    except WrongVerdictError as error:
        reported = {"package": error.package, "reason": error.reason, "missing": error.missing}
        reported["by_fork"] = isinstance(error.reason, trials.ForkFault)
        forking.tell(channel, wrong=reported)
        os.killpg(0, signal.SIGKILL)  # with what the imports may have started
    becoming.load()
    gc.freeze()  # a collection in a rank would write to, and so copy, what all of them share
    took_s = time.monotonic() - began_s
    forking.tell(channel, left_out=prepared.left_out, imported=prepared.count, took_s=took_s)
    huge_pages.join()  # before the first fork: memory that is shared already would be there twice
    rank = forking.serve(channel, guardian_pid, prepared, int(sys.argv[3]))
    # Only a forked rank comes here: the script runs with nothing of ours on the stack but this.
    becoming.run(rank)


@contextlib.contextmanager
def _without_collections():
    """Import without the garbage collector, a fifth of the time for PyTorch; 6 MB of garbage stay.

    Whether it is on, and thresholds that an import sets, are as the imports leave them.
    """
    before = gc.get_threshold()
    gc.set_threshold(0, *before[1:])
    try:
        yield
    finally:
        now = gc.get_threshold()
        if now[0] == 0:
            gc.set_threshold(before[0], *now[1:])


def become_killed_first():
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
    """No rank of this job can be forked; says why. ``can_stand_by``: a process can import the same for one rank."""

    def __init__(self, reason, can_stand_by=False):
        super().__init__(reason)
        self.can_stand_by = can_stand_by


class WrongVerdictError(Exception):
    """The verdicts do not hold: this package (empty: not known which) can't be shared, or lacks these modules."""

    def __init__(self, package, reason, missing=()):
        super().__init__(reason)
        self.package = package
        self.reason = reason
        self.missing = list(missing)


# Preparing.


class Prepared:
    """The imports of this process, and what must hold for them to be a rank's."""

    def __init__(self, told, oom_score):
        """Import nothing yet; ``told``: as `rankmend.hook.replay` says, and verdicts or None.

        ``oom_score``: what a rank's is.
        """
        self._told = told
        self.count = 0
        self.oom_score = oom_score
        self._variables = replay.Replay(told, imports.started_with())
        refusal = self._variables.refusal()
        if refusal is not None:
            raise UnforkableError(refusal)
        verdicts = told["verdicts"] or {"left_out": {}, "missing": {}, "stamps": {}}
        self.left_out = dict(verdicts["left_out"])  # package: reason
        self._by_fork = set(verdicts.get("by_fork", ()))  # those that only a fork breaks
        self._missing = dict(
            verdicts["missing"]
        )  # package: its modules that can't be imported here
        # path: what it was when its package was imported
        self._stamps = {path: stamp and tuple(stamp) for path, stamp in verdicts["stamps"].items()}
        self._has_tried_all = True
        self.environment = []  # that imports have changed, as `Replay.environment` tells it
        self.expected = told["expected"]  # as `rankmend.hook.variables` takes it
        self.first = None  # in a script's first run: the imports of this process, as a rank would tell of them
        self.packages = {name.partition(".")[0] for name, _origin in told["modules"]}

    def import_to_fork(self, try_s_max):
        """Import what a fork leaves whole. ``try_s_max``: seconds to try one package."""
        if self._told.get("statements") is not None:
            self._import_statements()
        elif self._told["verdicts"] is None:
            self._try_and_import(try_s_max)
        else:
            self._import_as_told()
        self._finish()

    def import_to_stand_by(self):
        """Import what a fork breaks as well: this process becomes one rank, and forks none."""
        for package in self._by_fork:
            self.left_out.pop(package, None)
        for package, modules in self._variables.packages(self.left_out):
            self._import(modules, self._missing.get(package, ()))
        self._finish()

    def check_forks(self, can_stand_by):
        """Refuse what leaves out most of the imports, or what breaks at a fork although no package does alone.

        ``can_stand_by``: the verdicts are there for standbys.
        """
        modules, lost = 0, 0
        for name, origin in self._told["modules"]:
            modules += not import_order.is_pythons_own(origin)
            lost += name.partition(".")[0] in self._by_fork
        if can_stand_by and lost > LOST_SHARE_MAX * modules:
            package = max(self._by_fork, key=self._size)
            reason = "a fork would break %s, which %s" % (package, self.left_out[package])
            raise UnforkableError(reason, can_stand_by=True)
        is_alone = len(os.listdir("/proc/self/task")) == 1
        fault = None if is_alone else trials.broken_by_fork()
        if fault:
            raise UnforkableError(
                "one of the imports %s, though none does alone" % fault,
                can_stand_by and isinstance(fault, trials.ForkFault),
            )

    def stale(self):
        """Return the path of a package that has changed since it was imported or tried, or None."""
        for path, stamp in self._stamps.items():
            if _stamp(path) != stamp:
                return path
        return None

    def keep_verdicts(self, path):
        """Write what the trials said, so that another server needs none; return False where that can't be."""
        if not self._has_tried_all:
            return False
        verdicts = {"left_out": self.left_out, "missing": self._missing, "stamps": self._stamps}
        verdicts["by_fork"] = sorted(self._by_fork)
        if self.first is not None:
            verdicts["first"] = self.first
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            with os.fdopen(os.open(path, flags, 0o600), "w", encoding="ascii") as file:
                file.write(json.dumps(verdicts))
        except OSError:
            return False
        return True

    def _try_and_import(self, try_s_max):
        until_s = time.monotonic() + TRIES_S_MAX
        for package, modules in self._variables.packages(self.left_out):
            if time.monotonic() >= until_s:
                self.left_out[package] = "was not tried within %d s" % TRIES_S_MAX
                self._has_tried_all = False
                continue
            reason, missing = trials.try_package(modules, try_s_max, self._variables)
            if reason is not None:
                self.left_out[package] = reason
                if isinstance(reason, trials.ForkFault):
                    self._by_fork.add(package)
                    self._missing[package] = missing
                continue
            if missing:
                self._missing[package] = missing
            self._import(modules, missing)

    def _size(self, package):
        return sum(name.partition(".")[0] == package for name, _origin in self._told["modules"])

    def _import(self, modules, missing):
        for name, _origin in modules:
            if name not in missing:
                importlib.import_module(name)
                self.count += 1
        self._note_stamps(modules)

    def _finish(self):
        self._stamps.update({path: _stamp(path) for path in (sys.executable, *_package_folders())})
        self.environment = self._variables.environment()
        self._check_environment(self._told["environment"])

    def _import_as_told(self):
        """Import by verdicts, kept or guessed; raise `WrongVerdictError` at the first package for which they don't hold."""
        changed = self.stale()
        if changed is not None:
            raise WrongVerdictError("", "%s has changed since it was tried" % changed)
        before = trials.Before()
        for package, modules in self._variables.packages(self.left_out):
            known = self._missing.get(package, ())
            some = [module for module in modules if module[0] not in known]
            before.renew()
            try:
                missing = trials.import_all(some)
            except BaseException as error:
                raise WrongVerdictError(package, trials.describe(error)) from error
            if missing:
                raise WrongVerdictError(package, "fails to import %s" % missing[0], missing)
            fault = trials.worst(
                before.fault(is_alone=False), self._variables.fault(before.loaded), before.missed()
            )
            if fault:
                raise WrongVerdictError(package, fault)
            self.count += len(some)
            self._note_stamps(modules)
        before.end()
        fault = trials.broken_by_fork()
        if fault:
            raise WrongVerdictError("", "one of the packages %s" % fault)

    def _import_statements(self):
        """Follow the script's first imports, as long as they are of installed packages.

        Raise `WrongVerdictError` at the first package that a fork would break.
        """
        before = trials.Before()
        by_imports = {}
        for name, parts in self._told["statements"]:
            package = name.partition(".")[0]
            if not _is_installed(package):
                break  # the script's own, which may do anything
            before.renew()
            try:
                importlib.import_module(name)
                __import__(name, fromlist=parts)
            except BaseException as error:
                raise WrongVerdictError(package, trials.describe(error)) from error
            fault = trials.worst(before.fault(is_alone=False), before.missed())
            if fault:
                raise WrongVerdictError(package, fault)
            made = self._variables.take_made()
            if made:
                by_imports.setdefault(package, {}).update(made)
        before.end()
        fault = trials.broken_by_fork()
        if fault:
            raise WrongVerdictError("", "one of the packages %s" % fault)
        modules = imports.installed_modules()
        self._note_stamps(modules)
        self.count = sum(not import_order.is_pythons_own(origin) for _name, origin in modules)
        self.first = {"modules": modules, "by_imports": by_imports}

    def _note_stamps(self, modules):
        for name, origin in modules:
            if "." not in name and os.path.isabs(origin):
                self._stamps[origin] = _stamp(origin)

    def _check_environment(self, environment):
        """Refuse a script that changes variables nobody knows when: a library may read them at import."""
        ours = {name: after for name, _before, after in self.environment}
        for name, value in environment.items():
            if ours.get(name) != value:
                raise UnforkableError(
                    "the script changes %s, which a library may read at import" % name
                )


def _is_installed(package):
    """Return whether this is a package of Python or an installed one; imports nothing."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    return spec is not None and import_order.is_installed(spec.origin)


def _package_folders():
    return [path for path in sys.path if path.endswith(("/site-packages", "/dist-packages"))]


def _stamp(path):
    """Return what another version of this file or folder differs in; the same on each mount of one file system."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    number = found.st_ino if stat.S_ISREG(found.st_mode) else 0  # overlayfs numbers folders anew
    return (found.st_mtime_ns, found.st_size, number)

"""The imports of ranks, for the fork server: read from the script, reported by the ranks, and stored from run to run.

    <state>/imports/<hash>.json   one file per interpreter, working folder and script or module

A first run has only the script's text (`read_first_imports`). Then each rank reports its own
imports (`rankmend.hook.imports`), and `share` merges them into the list that `rankmend.hook.replay`
takes.
"""

import ast
import contextlib
import hashlib
import json
import logging
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rankmend.clock import Clock
from rankmend.errors import LaunchError
from rankmend.files import read_if_there, replace_file
from rankmend.own_folder import make_private
from rankmend.secret_names import SECRET_NAME, URL_LOGIN
from recovery.launcher.ranks.command import RankCommand

log = logging.getLogger(__name__)

SCRIPT_BYTES_MAX: Final = 1 << 20
_STATEMENTS_MAX: Final = 500
_OURS: Final = "rankmend"  # the server has it, and a rank's is its own
_NEVER: Final = ("__future__", "antigravity", "this")
# The first optimizer of PyTorch imports it, a second in each rank.
_OPTIMIZER: Final = "torch._dynamo"
# A script that sets variables may mean those that it reads at import.
_ENVIRONMENT: Final = "environ"
_SETTERS: Final = ("putenv", "unsetenv")
_READERS: Final = ("get", "copy", "items", "keys", "values")

Statement = tuple[str, tuple[str, ...]]  # `from name import names`; no names: `import name`

Variables = Mapping[str, str | None]  # None: removed
Merged = tuple[Variables, list[str]]  # the same in all ranks, and names that differ
Change = tuple[int, Variables, list[str]]  # from which module on, and the same two
_UNCHANGED: Final[Variables] = {}

VERSION: Final = 2  # 2: which packages only a fork breaks
# a package that took too long on one bad day is tried again some day
KEPT_S_MAX: Final = 7 * 86400.0
FILES_MAX: Final = 64
_BYTES_MAX: Final = 16 << 20
_DIGEST_CHARACTERS: Final = 24
_SECRET_CHARACTERS_MIN: Final = 8


def read_first_imports(script: Path) -> tuple[Statement, ...]:
    """Return what the script imports first; empty where that can't be read from its text.

    These are the imports before the first statement that does anything else. A fresh rank makes
    them before it runs any line that could set a variable, change `sys.path` or start something, so
    one process may make them for all ranks. A script's own modules end the list, because they may
    do all of this. The server checks itself after each package (`rankmend.hook.fork_server`), and
    ends at the first one that a fork would break.
    """
    try:
        with script.open("rb") as file:
            source = file.read(SCRIPT_BYTES_MAX + 1)
        if len(source) > SCRIPT_BYTES_MAX:
            return ()
        text = source.decode()
        return first_imports(text, lambda name: _is_beside(script, name))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        log.info("no imports are read from %s: %r", script, error)
        return ()


def first_imports(text: str, is_own: Callable[[str], bool]) -> tuple[Statement, ...]:
    """Return the imports of this source before its first other statement, or before the first that ``is_own``.

    Empty where all are Python's own: ranks import those in no time.
    """
    found: list[Statement] = []
    tree = ast.parse(text)
    for statement in _leading(tree.body):
        names = _names(statement)
        if names is None or any(is_own(name.partition(".")[0]) for name, _parts in names):
            break
        found += [name for name in names if name[0].partition(".")[0] not in (_OURS, *_NEVER)]
        if len(found) >= _STATEMENTS_MAX:
            break
    packages = {name.partition(".")[0] for name, _parts in found}
    if packages <= sys.stdlib_module_names:
        return ()
    if "torch" in packages and "optim" in text and not _sets_variables(tree):
        found.append((_OPTIMIZER, ()))
    return tuple(found)


def _leading(body: Sequence[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    for statement in body:
        match statement:
            case ast.Import() | ast.ImportFrom():
                yield statement
            case ast.Expr(value=ast.Constant()):
                pass  # the docstring
            case _:
                return


def _sets_variables(tree: ast.Module) -> bool:
    """Return whether the script may set a variable; reading one, such as LOCAL_RANK, is no reason."""
    read: set[int] = set()
    named: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in _SETTERS:
                return True
            case ast.Subscript(value=value, ctx=ast.Load()):
                read.add(id(value))
            case ast.Attribute(value=value, attr=attr) if attr in _READERS:
                read.add(id(value))
            case ast.Compare(comparators=values):  # "RANK" in os.environ
                read.update(id(value) for value in values)
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) if name == _ENVIRONMENT:
                named.add(id(node))
            case ast.alias(name=name) if name in _SETTERS:
                return True
    return bool(named - read)


def _names(statement: ast.Import | ast.ImportFrom) -> list[Statement] | None:
    """Return what a statement imports; None for what lies beside the script."""
    if isinstance(statement, ast.Import):
        return [(alias.name, ()) for alias in statement.names]
    if statement.level or statement.module is None:
        return None
    return [(statement.module, tuple(alias.name for alias in statement.names if alias.name != "*"))]


def _is_beside(script: Path, name: str) -> bool:
    """Return whether the folder of the script, the first that Python searches, may have this module."""
    return (
        next(script.parent.glob(f"{name}.*"), None) is not None or (script.parent / name).exists()
    )


def is_package_file(origin: str) -> bool:
    """Return whether a module found there belongs to an installed package, not to Python itself."""
    return "/site-packages/" in origin or "/dist-packages/" in origin


@dataclass(frozen=True, slots=True)
class RankImports:
    """What one rank reports."""

    modules: list[tuple[str, str]]  # name, where it was found
    environments: dict[str, Variables]  # module: what had changed when it was searched for
    by_imports: dict[str, Variables]  # module: what its import has changed itself
    touched: dict[str, list[str | None] | None]  # variable: what it was set to; None: any
    unordered: Variables  # what has changed at an unknown time

    @classmethod
    def parse(cls, reported: Any) -> "RankImports":
        """Raise ValueError for a value that no rank reports."""
        try:
            modules = [(str(name), str(origin)) for name, origin in reported["modules"]]
            changes = reported["changes"]
            ends = [*(index for index, _variables in changes or ()), len(modules)]
            return cls(
                modules,
                {
                    name: _variables(variables)
                    for (index, variables), end in zip(changes or (), ends[1:], strict=True)
                    for name, _origin in modules[index:end]
                },
                {str(name): _variables(made) for name, made in reported["by_imports"].items()},
                {str(name): _values(values) for name, values in reported["touched"].items()},
                _UNCHANGED if changes is not None else _variables(reported["environment"]),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"no list of imports: {error!r}") from error


def share(reported: list[Any]) -> dict[str, object]:
    """Return the imports that all ranks share, in the first one's order, and the changes around them."""
    ranks = [RankImports.parse(item) for item in reported]
    shared = set.intersection(*(set(rank.modules) for rank in ranks))
    modules = [module for module in ranks[0].modules if module in shared]
    changes: list[Change] = []
    last: Merged = (_UNCHANGED, [])
    for index, (name, _origin) in enumerate(modules):
        merged = _merge(rank.environments.get(name, _UNCHANGED) for rank in ranks)
        if merged != last:
            changes.append((index, *merged))
            last = merged
    names = sorted({name for rank in ranks for name in rank.by_imports})
    by_imports = {
        name: _merge(rank.by_imports.get(name, _UNCHANGED) for rank in ranks) for name in names
    }
    return {
        "modules": modules,
        "changes": changes,
        "by_imports": by_imports,
        "expected": _expected(ranks, changes, by_imports),
        "environment": {name: value for rank in ranks for name, value in rank.unordered.items()},
    }


def _expected(
    ranks: list[RankImports], changes: list[Change], by_imports: Mapping[str, Merged]
) -> dict[str, list[str | None] | None]:
    """Return for each variable that was touched what a forked rank may set it to; None: anything.

    Bound is what all ranks had set to the same value at some import, and no import has set: a library may have read it.
    """
    differing = {name for _index, _same, names in changes for name in names}
    bound = {name for _index, same, _names in changes for name in same} - differing
    bound -= {name for same, names in by_imports.values() for name in (*same, *names)}
    expected: dict[str, list[str | None] | None] = {}
    for rank in ranks:
        for name, values in rank.touched.items():
            so_far = expected.setdefault(name, [] if name in bound else None)
            if so_far is None or values is None:
                expected[name] = None
            else:
                so_far += [value for value in values if value not in so_far]
    return expected


def _merge(of_ranks: Iterable[Variables]) -> Merged:
    """Return the variables that all ranks have changed to the same value, and the other ones' names."""
    first, *others = of_ranks
    if all(other == first for other in others):
        return first, []
    names = {name for other in (first, *others) for name in other}
    same = {
        name
        for name in names
        if all(_changed(other, name) == _changed(first, name) for other in others)
    }
    return {name: first[name] for name in sorted(same)}, sorted(names - same)


def _changed(variables: Variables, name: str) -> tuple[bool, str | None]:
    return name in variables, variables.get(name)


def _variables(reported: Any) -> Variables:
    for name, value in reported.items():
        if type(name) is not str or not (value is None or type(value) is str):
            raise TypeError(f"{name!r}: {value!r} is not a variable")
    return dict(reported)


def _values(reported: Any) -> list[str | None] | None:
    if reported is None:
        return None
    if type(reported) is not list or not all(
        item is None or type(item) is str for item in reported
    ):
        raise TypeError(f"{reported!r} are not values of a variable")
    return list(reported)


@dataclass(frozen=True, slots=True)
class TriedImports:
    """A list of imports that a server has tried."""

    told: Mapping[str, Any]  # as `rankmend.hook.replay` describes
    verdicts: Mapping[str, Any]  # of `rankmend.hook.fork_server`: left_out, missing, stamps
    took_s: float  # with the trials: a server without them takes less


class KeptImports:
    """The stored list of one script on this node.

    It has the imports of all ranks, the verdicts of the trials, how long they took, and the version
    of the script. With it the next run's server imports everything once, without trials, and forks
    the first attempt as well. A file that is torn, too large, too old or of another version counts
    as none. A thread writes and removes it: a disk that hangs delays no launcher.
    """

    def __init__(
        self,
        state: Path,
        command: RankCommand,
        folder: Path,
        clock: Clock,
        *,
        files_max: int = FILES_MAX,
    ) -> None:
        """``state``: rankmend's state folder, on a local disk. ``folder``: in which the ranks run.

        The arguments of the script are no part of what its list is found by: the runs of a sweep share it.
        """
        python, _unbuffered, *target = command.argv[:4]
        named = target if target[:1] == ["-m"] else target[:1]
        self._script = None if target[:1] == ["-m"] else folder / target[0]
        text = "\0".join((python, str(folder), *named))
        digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
        self._state = state
        self._path = state / "imports" / f"{digest[:_DIGEST_CHARACTERS]}.json"
        self._clock = clock
        self._files_max = files_max
        self._lock = threading.Lock()  # writes follow one another

    def read(self) -> TriedImports | None:
        """Return what was kept, or None where there is nothing to use."""
        try:
            body = read_if_there(self._path, _BYTES_MAX, LaunchError, follow_link=False)
            if body is None:
                return None
            retained = json.loads(body)
            age_s = self._clock.unix_s() - self._path.stat().st_mtime
            if (
                retained["version"] != VERSION
                or not 0 <= age_s < KEPT_S_MAX
                or "varying" in retained
            ):
                return None
            reported, verdicts = dict(retained["told"]), dict(retained["verdicts"])
            if _bound(reported) and retained["script"] != self._stamp_script():
                return None  # it may no longer set a variable that the imports then met
            for name in ("left_out", "missing", "stamps"):
                verdicts[name] = dict(verdicts[name])
            return TriedImports(reported, verdicts, float(retained["took_s"]))
        except (LaunchError, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            log.info("%s is not used: %r", self._path, error)
            return None

    def write(self, tried: TriedImports) -> None:
        """Keep this list, if the disk takes it; returns at once.

        Not with a variable that the script sets and whose name suggests a secret, nor with any of a module, which
        other files than its own may set.
        """
        bound, script = _bound(tried.told), self._stamp_script()
        is_secret = any(_is_secret(name, values) for name, values in bound.items())
        if is_secret or (bound and script is None):
            self.forget()
            return
        retained = {
            "script": script,
            "version": VERSION,
            "told": tried.told,
            "verdicts": tried.verdicts,
            "took_s": tried.took_s,
        }
        self._begin(lambda: self._replace_unless_varying(json.dumps(retained).encode(), bound))

    def note_varying(self, names: Collection[str]) -> None:
        """Keep no list for a while: the script sets these variables otherwise in each run; returns at once.

        With a kept list, ranks would wait for a server only to start themselves afresh.
        """
        retained = {"version": VERSION, "varying": sorted(names)}
        self._begin(lambda: self._replace(json.dumps(retained).encode()))

    def note_wrong_guess(self) -> None:
        """Keep that this version of the script can't be forked by its first imports; returns at once."""
        retained = {"version": VERSION, "wrong_guess": self._stamp_script()}
        self._begin(lambda: self._replace(json.dumps(retained).encode()))

    def had_wrong_guess(self) -> bool:
        """Return whether an earlier run has noted that."""
        try:
            body = read_if_there(self._path, _BYTES_MAX, LaunchError, follow_link=False)
            retained = json.loads(body or b"{}")
            age_s = self._clock.unix_s() - self._path.stat().st_mtime if body else 0.0
            is_of_today = retained["version"] == VERSION and 0 <= age_s < KEPT_S_MAX
            return bool(is_of_today and retained["wrong_guess"] == self._stamp_script())
        except (LaunchError, OSError, ValueError, TypeError, KeyError, RecursionError):
            return False

    def forget(self) -> None:
        """Remove the list; returns at once."""
        self._begin(lambda: self._path.unlink(missing_ok=True))

    def _stamp_script(self) -> list[int] | None:
        try:
            found = None if self._script is None else self._script.stat()
        except OSError:
            return None
        return None if found is None else [found.st_mtime_ns, found.st_size]

    def _begin(self, work: Callable[[], None]) -> None:
        def run() -> None:
            with self._lock, contextlib.suppress(OSError, LaunchError):
                work()

        threading.Thread(target=run, name="kept-imports", daemon=True).start()

    def _replace_unless_varying(self, body: bytes, bound: Collection[str]) -> None:
        with contextlib.suppress(LaunchError, OSError, ValueError, KeyError, TypeError):
            before = read_if_there(self._path, _BYTES_MAX, LaunchError, follow_link=False)
            age_s = self._clock.unix_s() - self._path.stat().st_mtime
            varying = json.loads(before or b"{}")["varying"]
            if age_s < KEPT_S_MAX and not set(bound).isdisjoint(varying):
                return
        self._replace(body)

    def _replace(self, body: bytes) -> None:
        folder = self._path.parent
        make_private(folder, LaunchError)
        replace_file(self._path, body, LaunchError, durable=False)
        files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in files[self._files_max :]:
            old.unlink(missing_ok=True)


def varying(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    """Return the variables that a script sets before its imports to other values than it did."""
    old, new = _bound(before), _bound(after)
    return {name for name in new if new[name] != old.get(name)}


def _bound(reported: Mapping[str, Any]) -> dict[str, list[str | None]]:
    """Return the variables of which the imports have met the script's own values."""
    return {name: values for name, values in reported["expected"].items() if values is not None}


def _is_secret(name: str, values: list[str | None]) -> bool:
    """Return whether this may be one; TOKENIZERS_PARALLELISM=false is none."""
    known = [value for value in values if value is not None]
    if any(URL_LOGIN.search(value) for value in known):
        return True
    is_long = any(len(value) >= _SECRET_CHARACTERS_MIN for value in known)
    return is_long and SECRET_NAME.search(name) is not None

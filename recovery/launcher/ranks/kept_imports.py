"""What the ranks of a script import, kept from one run to the next for the fork server.

    <state>/imports/<hash>.json   one file per interpreter, working folder and script or module

It has the list of `recovery.launcher.ranks.shared_imports`, the verdicts of the trials, how long they took, and of which
version the script was. With it
the next run's server imports everything once, without trials, and forks the first attempt as well. A file that is torn,
too large, too old or of another version counts as none. Written and removed on a thread: a disk that hangs holds up
no launcher.
"""

import contextlib
import hashlib
import json
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rankmend.clock import Clock
from rankmend.errors import LaunchError
from rankmend.files import read_if_there, replace_file
from rankmend.foreign_links import make_private
from rankmend.secret_names import SECRET_NAME, URL_LOGIN
from recovery.launcher.ranks.command import RankCommand

log = logging.getLogger(__name__)

VERSION: Final = 2  # 2: which packages only a fork breaks
KEPT_S_MAX: Final = (
    7 * 86400.0
)  # a package that took too long on one bad day is tried again some day
FILES_MAX: Final = 64
_BYTES_MAX: Final = 16 << 20
_DIGEST_CHARACTERS: Final = 24
_SECRET_CHARACTERS_MIN: Final = 8


@dataclass(frozen=True, slots=True)
class TriedImports:
    """A list of imports that a server has tried."""

    told: Mapping[str, Any]  # as `rankmend.hook.replay` describes
    verdicts: Mapping[str, Any]  # of `rankmend.hook.fork_server`: left_out, missing, stamps
    took_s: float  # with the trials: a server without them takes less


class KeptImports:
    """The kept list of one script on this node."""

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
            kept = json.loads(body)
            age_s = self._clock.unix_s() - self._path.stat().st_mtime
            if kept["version"] != VERSION or not 0 <= age_s < KEPT_S_MAX or "varying" in kept:
                return None
            told, verdicts = dict(kept["told"]), dict(kept["verdicts"])
            if _bound(told) and kept["script"] != self._stamp_script():
                return None  # it may no longer set a variable that the imports then met
            for name in ("left_out", "missing", "stamps"):
                verdicts[name] = dict(verdicts[name])
            return TriedImports(told, verdicts, float(kept["took_s"]))
        except (LaunchError, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            log.info("%s is not used: %r", self._path, error)
            return None

    def write(self, tried: TriedImports) -> None:
        """Keep this list, if the disk takes it; returns at once.

        Not with a variable that the script sets and whose name tells of a secret, nor with any of a module, which
        other files than its own may set.
        """
        bound, script = _bound(tried.told), self._stamp_script()
        is_secret = any(_is_secret(name, values) for name, values in bound.items())
        if is_secret or (bound and script is None):
            self.forget()
            return
        kept = {
            "script": script,
            "version": VERSION,
            "told": tried.told,
            "verdicts": tried.verdicts,
            "took_s": tried.took_s,
        }
        self._begin(lambda: self._replace_unless_varying(json.dumps(kept).encode(), bound))

    def note_varying(self, names: Collection[str]) -> None:
        """Keep no list for a while: the script sets these variables otherwise in each run; returns at once.

        With a kept list, ranks would wait for a server only to start themselves afresh.
        """
        kept = {"version": VERSION, "varying": sorted(names)}
        self._begin(lambda: self._replace(json.dumps(kept).encode()))

    def note_wrong_guess(self) -> None:
        """Keep that this version of the script can't be forked by its first imports; returns at once."""
        kept = {"version": VERSION, "wrong_guess": self._stamp_script()}
        self._begin(lambda: self._replace(json.dumps(kept).encode()))

    def had_wrong_guess(self) -> bool:
        """Return whether an earlier run has noted that."""
        try:
            body = read_if_there(self._path, _BYTES_MAX, LaunchError, follow_link=False)
            kept = json.loads(body or b"{}")
            age_s = self._clock.unix_s() - self._path.stat().st_mtime if body else 0.0
            is_of_today = kept["version"] == VERSION and 0 <= age_s < KEPT_S_MAX
            return bool(is_of_today and kept["wrong_guess"] == self._stamp_script())
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
        files = sorted(folder.glob("*.json"), key=lambda one: one.stat().st_mtime, reverse=True)
        for old in files[self._files_max :]:
            old.unlink(missing_ok=True)


def varying(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    """Return the variables that a script sets before its imports to other values than it did."""
    old, new = _bound(before), _bound(after)
    return {name for name in new if new[name] != old.get(name)}


def _bound(told: Mapping[str, Any]) -> dict[str, list[str | None]]:
    """Return the variables of which the imports have met the script's own values."""
    return {name: values for name, values in told["expected"].items() if values is not None}


def _is_secret(name: str, values: list[str | None]) -> bool:
    """Return whether this may be one; TOKENIZERS_PARALLELISM=false is none."""
    known = [value for value in values if value is not None]
    if any(URL_LOGIN.search(value) for value in known):
        return True
    is_long = any(len(value) >= _SECRET_CHARACTERS_MIN for value in known)
    return is_long and SECRET_NAME.search(name) is not None

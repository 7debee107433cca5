"""Runs one program with and without the variables of `rankmend watch env`, and returns what differs."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.hook import RUN_S_MAX, _find_python

# What a program can see of its interpreter. Also for Python 2.7.
SHOW = """\
import json, os, sys
def told(name):
    value = os.environ[name]
    return ":".join(part for part in value.split(":") if part != HOOK) if name == "PYTHONPATH" else value
print(json.dumps({
    "modules": sorted(sys.modules),
    # Nothing of ours runs with -S: so the folder stays there.
    "path": [one for one in sys.path if not (sys.flags.no_site and one == HOOK)],
    "argv": sys.argv,
    "flags": str(sys.flags),
    "sys": sorted(dir(sys)),
    "builtins": sorted(dir(sys.modules[[n for n in ("builtins", "__builtin__") if n in sys.modules][0]])),
    "finders": [getattr(one, "__name__", type(one).__name__) for one in sys.meta_path],
    # 2.7 caches what it comes by on the way to a module that is not there.
    "cached": sorted(one for one in sys.path_importer_cache if sys.version_info > (3,) and not (sys.flags.no_site and one == HOOK)),
    "warnings": str(getattr(sys, "warnoptions", None)),
    "environment": dict((name, told(name)) for name in os.environ if not name.startswith("RANKMEND_WATCH")
                        and (name != "PYTHONPATH" or told(name))),
    "threads": len(os.listdir("/proc/self/task")),
    "descriptors": len(os.listdir("/proc/self/fd")),
    "site": str(sys.modules.get("sitecustomize")),
}, sort_keys=True))
"""
VERSIONS = ("2.7", "3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13")
# One of each kind: without ours and with another import system, without ours, the oldest and the newest with ours.
KINDS = ("2.7", "3.6", "3.8", "3.13")


def every_python(versions: Sequence[str] = VERSIONS) -> "list[object]":
    """Return a parameter for each version that may come by, skipped where this machine has none."""
    found: list[object] = [pytest.param(sys.executable, id="own")]
    for version in versions:
        path = _find_python(version)
        marks = [] if path else [pytest.mark.skip(reason=f"no Python {version}")]
        found.append(pytest.param(path, id=version, marks=marks))
    return found


@dataclass
class Pair:
    """A folder in which a program runs twice."""

    folder: Path
    hook: Path
    variables: dict[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()  # a command that runs the program's

    def show(self) -> str:
        """Return a program that tells all that it can see."""
        return f"HOOK = {str(self.hook)!r}\n{SHOW}"

    def script(self, text: str, name: str = "program.py") -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def environment(self, *, is_watched: bool) -> dict[str, str]:
        base = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "LC_ALL": "C.UTF-8"}
        made = {**base, **self.variables}
        made = {name: value for name, value in made.items() if value != "unset"}
        if is_watched:  # as the lines of `rankmend watch env` do
            before = made.get("PYTHONPATH", "")
            made["PYTHONPATH"] = f"{self.hook}:{before}" if before else str(self.hook)
            made["RANKMEND_WATCH"] = "1"
        return made

    def run(
        self, command: Sequence[str], *, is_watched: bool, given: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*self.prefix, *command],
            cwd=self.folder,
            env=self.environment(is_watched=is_watched),
            input=given,
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            check=False,
        )

    def both(
        self, *command: str, given: str = "", fresh: Path | None = None
    ) -> "tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]":
        """Run it without and with, and return both ends; ``fresh``: a folder that it makes."""
        ends = []
        for is_watched in (False, True):
            if fresh is not None:
                shutil.rmtree(fresh, ignore_errors=True)
            ends.append(self.run(command, is_watched=is_watched, given=given))
        return ends[0], ends[1]

    def same(self, *command: str, code: int = 0, given: str = "", fresh: Path | None = None) -> str:
        """Require that both behave alike, and end with this code; return what they print."""
        without, watched = self.both(*command, given=given, fresh=fresh)
        assert without.returncode == code, without.stderr
        assert watched.stdout == without.stdout, _differences(without.stdout, watched.stdout)
        assert watched.stderr == without.stderr
        assert watched.returncode == without.returncode
        return watched.stdout


def _differences(without: str, watched: str) -> str:
    """Return what differs of what `SHOW` has printed, else both texts."""
    found = []
    for line, other in zip(without.splitlines(), watched.splitlines(), strict=False):
        if line != other and line.startswith("{"):
            before, after = json.loads(line), json.loads(other)
            found += [
                f"{name}: {before[name]} -> {after[name]}"
                for name in before
                if before[name] != after[name]
            ]
    return "\n".join(found) or f"{without}\n-> {watched}"

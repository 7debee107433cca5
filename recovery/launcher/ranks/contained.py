"""Ranks behind `--rank-prefix`: what runs in front of each, and how its variables get behind it.

    PREFIX... sh -c SCRIPT SITE NAME=VALUE... python -u train.py

Many container tools drop the environment, so what rankmend sets is given once more behind the prefix, by `env`; a shell
with a fixed script only puts the hook's folder in front of the PYTHONPATH that the container has. What runs behind it has
`ENV_INSIDE`, what runs before it has not: so a signal meant for the rank does not end the tool that it depends on.
"""

import fnmatch
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rankmend.errors import ConfigError
from rankmend.hook import layout
from recovery.launcher.processes.process_tree import (
    ENV_INSIDE,
    ENV_LAUNCHER,
    ENV_NODE,
)

PLACEHOLDERS: Final = ("{runtime}", "{cwd}", "{rank}", "{local_rank}", "{attempt}", "{job_id}")
WHY_NOT_FORKED: Final = "--rank-prefix: each rank starts in its own container"
_PLACEHOLDER: Final = re.compile("|".join(map(re.escape, PLACEHOLDERS)))
_MARKS: Final = frozenset((layout.ENV_JOB_ID, layout.ENV_ATTEMPT, ENV_NODE, ENV_LAUNCHER))
_PYTHONPATH: Final = "PYTHONPATH"
# $0 is the hook's folder, the rest goes to env: nothing of them is evaluated.
_SCRIPT: Final = 'export PYTHONPATH="$0${PYTHONPATH:+:$PYTHONPATH}"; exec env "$@"'
# Tools and shells tell by it that a signal has ended what they ran: 128 and its number.
_SIGNALLED: Final = range(128 + 1, 128 + 65)


@dataclass(frozen=True, slots=True)
class RankPrefix:
    """What runs in front of each rank: words, in which placeholders are not filled in yet."""

    words: tuple[str, ...]
    passed: tuple[str, ...] = ()  # names or patterns of the launcher's variables that go along

    def fill(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """Return the words with the value of each placeholder, which is named without braces."""
        return tuple(
            _PLACEHOLDER.sub(lambda found: values[found[0][1:-1]], word) for word in self.words
        )


def parse_prefix(text: str, passed: str | None, path: str | None) -> RankPrefix:
    """Return the prefix of the command line. ``path``: where programs are looked for."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"--rank-prefix {text!r} can't be split into words: {error}") from error
    if not words:
        raise ConfigError("--rank-prefix is empty: name the program that runs each rank")
    if shutil.which(words[0], path=path) is None:
        raise ConfigError(f"--rank-prefix: the program {words[0]!r} was not found")
    unknown = [item for word in words for item in re.findall(r"\{[a-z_]+\}", word)]
    unknown = [item for item in unknown if item not in PLACEHOLDERS]
    if unknown:
        known = ", ".join(PLACEHOLDERS)
        raise ConfigError(f"--rank-prefix: {unknown[0]} is not one of the placeholders {known}")
    names = tuple(name.strip() for name in (passed or "").split(",") if name.strip())
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_*?]+", name):
            raise ConfigError(f"--rank-prefix-env: {name!r} is not a variable's name or a pattern")
    return RankPrefix(words, names)


def wrap(
    prefix: RankPrefix,
    argv: Sequence[str],
    environment: Mapping[str, str],
    base: Mapping[str, str],
    site: str,
    values: Mapping[str, str],
) -> tuple[str, ...]:
    """Return the whole command of a rank. ``environment``: all of it, of which ``base`` is the launcher's."""
    given = [
        f"{name}={value}" for name, value in sorted(_behind(prefix, environment, base).items())
    ]
    return (*prefix.fill(values), "sh", "-c", _SCRIPT, site, *given, f"{ENV_INSIDE}=1", *argv)


def _behind(
    prefix: RankPrefix, environment: Mapping[str, str], base: Mapping[str, str]
) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name != _PYTHONPATH
        and (
            base.get(name) != value
            or name in layout.RANK_VARIABLES
            or name.startswith("RANKMEND_")
            or any(fnmatch.fnmatchcase(name, pattern) for pattern in prefix.passed)
        )
    }


def environment_in_front(environment: Mapping[str, str], base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the prefix itself: a rank's, without what only the hook is to read.

    It bears the marks: the tool belongs to the rank and ends with it.
    """
    front = {
        name: value
        for name, value in environment.items()
        if name in _MARKS or not name.startswith("RANKMEND_")
    }
    front.pop(_PYTHONPATH, None)
    if _PYTHONPATH in base:
        front[_PYTHONPATH] = base[_PYTHONPATH]
    return front


def read_end(code: int | None, signum: int | None) -> tuple[int | None, int | None]:
    """Return how the rank ended, exit code or signal, where the tool in front of it ended so."""
    if code is not None and code in _SIGNALLED:
        return None, code - 128
    return code, signum

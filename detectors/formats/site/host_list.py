"""Expands Slurm's lists of hosts, such as node[1-3,7],gpu-a[01-04]. Pure.

Source: slurm.conf(5), NodeName, and what `scontrol show hostnames` prints. A list comes from the environment, a file or a command line, so
it has limits: a list of the largest job fits well within them.
"""

import re
from collections.abc import Iterator
from itertools import product
from typing import Final

from rankmend.errors import SourceError

CHARACTERS_MAX: Final = 1 << 18
HOSTS_MAX: Final = 20_000  # as --nnodes
_BRACKETS_MAX: Final = 8  # dimensions of a name, as in rack[1-4]node[1-8]
_NUMBER_DIGITS_MAX: Final = 9
_PLAIN: Final = re.compile(r"[A-Za-z0-9._-]*")
_RANGE: Final = re.compile(rf"(\d{{1,{_NUMBER_DIGITS_MAX}}})(?:-(\d{{1,{_NUMBER_DIGITS_MAX}}}))?")


def expand_hosts(text: str) -> tuple[str, ...]:
    """Return the names in a list of hosts, in its order; raise SourceError where it is none."""
    if len(text) > CHARACTERS_MAX:
        raise SourceError(f"a list of hosts of {len(text)} characters: at most {CHARACTERS_MAX}")
    hosts: list[str] = []
    for part in _split(text):
        for name in _expand(part, text):
            hosts.append(name)
            if len(hosts) > HOSTS_MAX:
                raise SourceError(f"{_shown(text)} names more than {HOSTS_MAX} hosts")
    if not hosts:
        raise SourceError("the list of hosts is empty")
    return tuple(hosts)


def _split(text: str) -> Iterator[str]:
    """Yield what stands between the commas that are outside of brackets."""
    begin, is_inside = 0, False
    for at, letter in enumerate(text):
        if letter in "[]":
            if (letter == "[") is is_inside:
                raise _wrong(text)
            is_inside = letter == "["
        elif letter == "," and not is_inside:
            yield text[begin:at]
            begin = at + 1
    if is_inside:
        raise _wrong(text)
    yield text[begin:]


def _expand(part: str, text: str) -> Iterator[str]:
    pieces = re.split(r"[\[\]]", part)  # plain, ranges, plain, ranges, ..., plain
    if not part or len(pieces) > 2 * _BRACKETS_MAX + 1:
        raise _wrong(text)
    if not all(_PLAIN.fullmatch(plain) for plain in pieces[::2]):
        raise _wrong(text)
    choices = [
        (piece,) if number % 2 == 0 else tuple(_numbers(piece, text))
        for number, piece in enumerate(pieces)
    ]
    return map("".join, product(*choices))


def _numbers(ranges: str, text: str) -> Iterator[str]:
    """Yield the numbers of ranges such as 1-3,7 or 01-04, which keep their width."""
    count = 0
    for word in ranges.split(","):
        found = _RANGE.fullmatch(word)
        if found is None:
            raise _wrong(text)
        first, last = found[1], found[2] or found[1]
        count += int(last) - int(first) + 1
        if int(last) < int(first) or count > HOSTS_MAX:
            raise _wrong(text)
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}d}"


def _wrong(text: str) -> SourceError:
    return SourceError(
        f"{_shown(text)} is not a list of at most {HOSTS_MAX} hosts such as node[1-3,7],gpu-a[01-04]"
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:200]}...")

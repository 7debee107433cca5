"""No pattern of ours takes time that grows with the square of a text from outside, unless that text is short.

Judged by the pattern's parts and by no clock. Work grows with the square where

- a search may begin anywhere in what its first unbounded repeat takes: ``\\w*loss`` over ``aaaa...`` tries each beginning to the end;
- two unbounded repeats with nothing between them that only one of them can't take share a text: ``\\w*loss\\w*:``;
- an unbounded repeat holds another one that may take the same: ``(\\w+\\s*)*``.

The remedy is a bound (``\\w{0,64}``), a beginning (``(?<!\\w)``), or a text that is cut before: those are listed here with their bound.
"""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

try:
    import re._constants as c  # type: ignore[import-not-found]
    import re._parser as parser  # type: ignore[import-not-found]
except ImportError:  # Python 3.10
    import sre_constants as c  # type: ignore[no-redef]
    import sre_parse as parser  # type: ignore[no-redef]

pytestmark = pytest.mark.process  # it imports everything

PARTS: Final = ("agent", "detectors", "recovery", "rankmend")
CHARS: Final = frozenset(map(chr, range(128))) | {"é"}
BOUND_MIN: Final = 256  # repeats that take more count as unbounded
_SEARCHES: Final = ("search", "finditer", "findall", "sub", "subn", "split")


@cache
def modules() -> tuple[ModuleType, ...]:
    found = []
    for part in PARTS:
        root = importlib.import_module(part)
        for module in pkgutil.walk_packages(root.__path__, f"{part}."):
            if not module.name.endswith("__main__"):
                found.append(importlib.import_module(module.name))
    return tuple(found)


def patterns() -> Iterator[tuple[str, "re.Pattern[Any]", bool]]:
    """Yield each compiled pattern that a module holds, with its place and whether it is searched for."""
    seen = set()
    for module in modules():
        source = Path(module.__file__ or "").read_text("utf-8")
        for name, value in vars(module).items():
            if name.startswith("__"):
                continue
            for place, pattern in _within(name, value, depth=0):
                key = (pattern.pattern, pattern.flags)
                if key in seen:
                    continue
                seen.add(key)
                is_alone = place == name
                searched = any(f"{name}.{verb}(" in source for verb in _SEARCHES)
                named = re.search(rf"\b{re.escape(name)}\.(?:full)?match\(", source)
                yield f"{module.__name__}.{place}", pattern, searched or not (is_alone and named)


def _within(place: str, value: object, depth: int) -> Iterator[tuple[str, "re.Pattern[Any]"]]:
    if isinstance(value, re.Pattern):
        yield place, value
    elif depth < 4 and not isinstance(value, str | bytes | type):
        parts: Any = ()
        if isinstance(value, dict):
            parts = value.values()
        elif isinstance(value, tuple | list | frozenset | set):
            parts = value
        elif fields := getattr(value, "__struct_fields__", None) or getattr(
            value, "__dataclass_fields__", None
        ):
            parts = [getattr(value, field, None) for field in fields]
        for number, part in enumerate(parts):
            yield from _within(f"{place}[{number}]", part, depth + 1)


Loops = tuple[frozenset[str], ...]


class Part:
    """One part of a pattern, in the order of the text: what it may take, what it repeats without a bound, whether it must take anything."""

    def __init__(
        self,
        chars: frozenset[str] = frozenset(),
        loops: Loops = (),
        *,
        is_required: bool = False,
        stops: frozenset[str] | None = None,
    ) -> None:
        self.chars, self.loops, self.is_required = chars, loops, is_required
        self.stops = stops  # characters within which no search begins behind this part; None: all


class Judge:
    def __init__(self, pattern: "re.Pattern[Any]", *, is_searched: bool) -> None:
        self.flags = pattern.flags
        self.faults: set[str] = set()
        tree = parser.parse(pattern.pattern, pattern.flags)
        for parts in self._lines(list(tree)):
            self._look_at_pairs(parts)
            if is_searched:
                self._look_at_beginning(parts)

    def _lines(self, tree: list[Any]) -> list[list[Part]]:
        """Return the pattern's parts in order, and so with each alternative in place of all."""
        parts = [self._parts_of(op, value) for op, value in tree]
        lines = [[part for one in parts for part in one]]
        for place, (op, value) in enumerate(tree):
            inner = [value[3]] if op is c.SUBPATTERN else value[1] if op is c.BRANCH else []
            before = [part for one in parts[:place] for part in one]
            after = [part for one in parts[place + 1 :] for part in one]
            for alternative in inner:
                lines += [[*before, *line, *after] for line in self._lines(list(alternative))]
        return lines

    def _chars(self, op: Any, value: Any) -> frozenset[str]:
        if op is c.LITERAL:
            char = chr(value) if value < 128 else "é"
            return CHARS & ({char, char.swapcase()} if self.flags & re.I else {char})
        if op is c.NOT_LITERAL:
            return CHARS - self._chars(c.LITERAL, value)
        if op is c.ANY:
            return CHARS if self.flags & re.S else CHARS - {"\n"}
        if op is c.CATEGORY:
            source = {
                c.CATEGORY_DIGIT: r"\d", c.CATEGORY_NOT_DIGIT: r"\D", c.CATEGORY_SPACE: r"\s",
                c.CATEGORY_NOT_SPACE: r"\S", c.CATEGORY_WORD: r"\w", c.CATEGORY_NOT_WORD: r"\W",
            }[value]  # fmt: skip
            return frozenset(char for char in CHARS if re.match(source, char))
        assert op is c.IN, op
        found: set[str] = set()
        is_negated = False
        for inner, what in value:
            if inner is c.NEGATE:
                is_negated = True
            elif inner is c.RANGE:
                found |= {char for char in CHARS if what[0] <= ord(char) <= what[1]}
                found |= {"é"} if what[1] >= 128 else set()
            else:
                found |= self._chars(inner, what)
        if self.flags & re.I:
            found |= CHARS & {char.swapcase() for char in found}
        return CHARS - found if is_negated else frozenset(found)

    def _parts(self, tree: Any) -> list[Part]:
        return [part for op, value in tree for part in self._parts_of(op, value)]

    def _parts_of(self, op: Any, value: Any) -> list[Part]:  # noqa: PLR0911 - one for each kind
        if op is c.SUBPATTERN:
            return self._parts(value[3])
        if op is getattr(c, "ATOMIC_GROUP", None):
            return self._parts(value)
        if op is c.BRANCH:
            return [_either([self._parts(tree) for tree in value[1]])]
        if op in (c.MAX_REPEAT, c.MIN_REPEAT, getattr(c, "POSSESSIVE_REPEAT", None)):
            return self._repeated(*value)
        if op is c.AT:
            word = frozenset(char for char in CHARS if re.match(r"\w", char))
            stops = {
                c.AT_BEGINNING: CHARS - {"\n"} if self.flags & re.M else CHARS,
                c.AT_BEGINNING_STRING: CHARS,
                c.AT_BOUNDARY: word,
            }.get(value, frozenset())
            return [Part(stops=stops)]
        if op is c.ASSERT_NOT and value[0] < 0:
            return [
                Part(
                    stops=frozenset().union(
                        *(one.chars for one in self._parts(value[1])), frozenset()
                    )
                )
            ]
        if op in (c.ASSERT, c.ASSERT_NOT):
            return [Part(is_required=False)]
        if op is c.GROUPREF:
            return [Part(CHARS)]
        if op is c.GROUPREF_EXISTS:
            return [_either([self._parts(value[1]), self._parts(value[2] or [])])]
        return [Part(self._chars(op, value), is_required=True)]

    def _repeated(self, least: int, most: int, tree: Any) -> list[Part]:
        inner = self._parts(tree)
        chars = frozenset().union(*(part.chars for part in inner), frozenset())
        required = least > 0 and any(part.is_required for part in inner)
        if most < BOUND_MIN:
            loops = tuple(loop for part in inner for loop in part.loops)
            if most == 1:
                return [Part(chars, loops, is_required=required)]
            return [Part(chars, loops * 2, is_required=required)]
        for place, part in enumerate(inner):
            others = inner[:place] + inner[place + 1 :]
            for loop in part.loops:
                if all(not one.is_required or one.chars & loop for one in others):
                    self.faults.add(f"nested repeats of {_shown(loop)}")
        return [Part(chars, (chars,), is_required=required)]

    def _look_at_pairs(self, parts: list[Part]) -> None:
        for first, part in enumerate(parts):
            for loop in part.loops:
                for second in range(first + 1, len(parts)):
                    shared = [loop & other for other in parts[second].loops if loop & other]
                    fails = any(one.is_required or one.stops for one in parts[second + 1 :])
                    if shared and fails:
                        self.faults.add(f"two repeats of {_shown(shared[0])}")
                    if parts[second].is_required and not parts[second].chars & loop:
                        break

    def _look_at_beginning(self, parts: list[Part]) -> None:
        stops: frozenset[str] = frozenset()
        for place, part in enumerate(parts):
            stops |= part.stops or frozenset()
            fails = any(one.is_required or one.stops for one in parts[place + 1 :])
            for loop in part.loops:
                free = loop - stops
                before = [one for one in parts[:place] if one.is_required]
                if free and fails and all(one.chars & free for one in before):
                    self.faults.add(f"a search that begins within a repeat of {_shown(free)}")


def _either(branches: list[list[Part]]) -> Part:
    parts = [part for branch in branches for part in branch]
    stops = [
        frozenset().union(*(part.stops or frozenset() for part in branch), frozenset())
        for branch in branches
    ]
    return Part(
        frozenset().union(*(part.chars for part in parts), frozenset()),
        tuple(loop for part in parts for loop in part.loops),
        is_required=all(
            any(part.is_required or part.stops == CHARS for part in branch) for branch in branches
        ),
        stops=frozenset.intersection(*stops) if stops else None,
    )


def _shown(chars: frozenset[str]) -> str:
    shown = "".join(sorted(char for char in chars if char.isprintable()))
    return repr(shown if len(shown) < 12 else f"{shown[:4]}...{shown[-4:]}")


SHORT: Final = {
    # Lines of a rank's output, cut to lines.LINE_BYTES_MAX = 4,096 bytes; what a verdict keeps of them is shorter.
    "detectors.job_log.decision": {"_OWN_MEMORY", "_LOOP"},
    "detectors.job_log.error_kinds": {"_JOINS", "_CONFIG_TYPES"},
    "detectors.job_log.facts": {
        *("LINE_RULES", "_SYSLOG_HOST", "_COMM", "_WORLD", "_ATTEMPT", "_BARE"),
    },
    "detectors.job_log.lines": {"_MARK"},
    "detectors.job_log.watchdog": {"_GROUPED", "_BARRIER"},
    # Statements of at most error_text.MESSAGE_CHARS_MAX = 2,000 and lines of LINE_CHARS_MAX = 4,000 characters; names, paths and lines
    # of code of _PATH_CHARS_MAX = 400.
    "detectors.failed.error_classes": {
        *("ROWS", "SURE_OUTAGE", "_BARE", "_CHILD_ENDED", "_OF_CODE_OR_DATA"),
    },
    "detectors.failed.lasting_errors": {"_OF_CODE", "_OF_FILES"},
    "detectors.failed.outages": {"_NO_ANSWER"},
    "detectors.failed.error_text": {"_NOT_STARTED"},
    "detectors.failed.loading_error": {
        *("_READER", "_KEEPS_CHECKPOINTS", "_LOADS_STATE", "_LOADS_PARTS", "_SAVES"),
        "_LOADING_LINE",
    },
    # Lines of the kernel's log, which prints at most 1,024 bytes.
    "detectors.kernel.rules.matcher": {"_OOM_CONTEXT"},
    "detectors.node.charges": {"_IN_LIBRARY"},
    # File names: 255 bytes.
    "recovery.checkpoints.formats.weights": {"_INDEX", "_SHARD"},
    "recovery.checkpoints.names": {"_VALUE"},
    # One line or file of the kernel, a driver's tool or the scheduler's, or of an administrator: who writes it is root.
    "agent.collectors.imex": {"_NODE"},
    "agent.collectors.versions": {"_NVRM"},
    "agent.slurm.commands": {"_REASON"},
    "agent.vendors.ascend": {"_PAIR"},
    "detectors.formats.site.slurm_topology": {"_YAML"},
    "detectors.formats.ss_flows": {"_ENDS"},
    "rankmend.toml_file": {"_HEADER"},
    "recovery.lab.drill.watched_site": {"_STARTED"},
    "recovery.service.controller_config": {"_CERTIFICATE"},
    "recovery.service.tokens": {"_ROLES"},
    "recovery.schedulers.slurm.answers": {"_REASON", "_DURATION"},
    "recovery.schedulers.slurm.bounds": {"_USER"},
    # It ends at the text's end, so a search that begins never fails.
    "recovery.local.report.scrub": {"_RULES"},
}


def test_patterns_that_may_take_the_square_of_a_texts_length_are_used_on_short_texts_only() -> None:
    found: dict[str, set[str]] = {}
    count = 0
    for place, pattern, is_searched in patterns():
        count += 1
        if Judge(pattern, is_searched=is_searched).faults:
            module, _dot, name = place.partition("[")[0].rpartition(".")
            found.setdefault(module, set()).add(name)

    assert found == SHORT, "give the repeats a bound, or name here what bounds the text"
    assert count > 500


@pytest.mark.parametrize(
    "text",
    [
        r"\w*loss\w*:",
        r"\s+x",
        r"[\w.]+\.py\b.*line",
        r"(?:a|\d+,)+!",
        r"(\w+\s*)*$",
        r"^\w*Config\w*Error",
        r"(?m)^[\w.]*Timeout\w*:",
        r"foo|bar.*baz",
        r"(?i)(?:load|restore)\w*(?:model|state)",
        r"\w{0,1000}loss",
    ],
)
def test_shapes_whose_work_grows_with_the_square_are_found(text: str) -> None:
    assert Judge(re.compile(text), is_searched=True).faults


@pytest.mark.parametrize(
    "text",
    [
        r"\b\w{0,64}loss\w{0,64}:",
        r"(?<!\w)\w+ =",
        r"^\s*#",
        r"step \d+ of",
        r"(?:^|\s)[a-z]+=",
        r"\d+",
        r"x(?:a,)*$",
        r"\A[^:]*: [^:]*:",
    ],
)
def test_shapes_whose_work_grows_with_the_length_pass(text: str) -> None:
    assert Judge(re.compile(text), is_searched=True).faults == set()

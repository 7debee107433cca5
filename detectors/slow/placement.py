"""Which shared part explains the slow workers: host, rail, switch, NIC or link."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from detectors.network_topology import decode_topology, leaf_switches
from detectors.slow.work_table import Matrix, TracedWorker
from rankmend.errors import SourceError

SHARE_MIN: Final = 0.75  # this share of a part's workers must be slow; noise hides some
RATIO: Final = 1.5  # a delay this far above the rest is hot: transfer times vary by tens of percent
LINES_MAX: Final = 100_000
NAMES_MAX: Final = 100_000
_RANGE: Final = re.compile(r"(?P<low>\d{1,9})(?:-(?P<high>\d{1,9}))?$")


@dataclass(frozen=True, slots=True)
class SharedPart:
    """What the slow workers share and the others don't."""

    kind: str  # rank, host, rail, switch, sender, receiver, link
    name: str
    share: float  # the share of its workers that are slow


def locate(
    workers: Sequence[TracedWorker], slow: Sequence[int], switch_of: Mapping[str, str]
) -> tuple[SharedPart, ...]:
    """Return the fewest, largest parts that explain the slow rows.

    A switch needs two hosts or more below it, a host two workers, a rail two hosts; what no
    such part explains stays a rank.
    """
    left = set(slow)
    parts: list[SharedPart] = []
    for kind, keys in (
        ("switch", [switch_of.get(worker.host or "") for worker in workers]),
        ("host", [worker.host for worker in workers]),
        ("rail", [worker.nic for worker in workers]),
    ):
        below: dict[str, list[int]] = {}
        for row, key in enumerate(keys):
            if key:
                below.setdefault(key, []).append(row)
        if len(below) < 2:
            continue  # all stand below one: it says nothing
        for name, rows in sorted(below.items()):
            hit = [row for row in rows if row in left]
            hosts = {workers[row].host for row in hit}
            if len(hit) < 2 or len(hit) < SHARE_MIN * len(rows):
                continue
            if kind in ("switch", "rail") and len(hosts - {None}) < 2:
                continue
            parts.append(SharedPart(kind, name, len(hit) / len(rows)))
            left -= set(hit)
    parts.extend(SharedPart("rank", workers[row].name(), 1.0) for row in slow if row in left)
    return tuple(parts)


def locate_delay(
    names: Sequence[str], delays: Matrix, usual: float | None = None
) -> tuple[SharedPart, ...]:
    """Return the hot rows (sender), columns (receiver) and cells (link) of a delay matrix.

    ``usual``: the delay of what is sound. Without it that is the median, and a matrix that is mostly hot says nothing.
    """
    matrix = np.asarray(delays, dtype=np.float64)
    middle = float(np.nanmedian(matrix)) if np.isfinite(matrix).any() else np.nan
    middle = middle if usual is None else usual
    if len(names) < 3 or not middle > 0:
        raise SourceError(f"delays between {len(names)} ends: three or more are needed")
    known = np.isfinite(matrix)
    with np.errstate(invalid="ignore"):
        hot = known & (matrix >= RATIO * middle)
    if usual is None and hot.sum() > 0.5 * known.sum():
        return ()
    parts: list[SharedPart] = []
    for kind, axis in (("sender", 1), ("receiver", 0)):
        share = (hot & known).sum(axis=axis) / np.maximum(known.sum(axis=axis), 1)
        for place in np.flatnonzero((share >= SHARE_MIN) & (known.sum(axis=axis) >= 2)).tolist():
            parts.append(SharedPart(kind, names[place], float(share[place])))
            if axis == 1:
                hot[place, :] = False
            else:
                hot[:, place] = False
    for source, target in np.argwhere(hot).tolist():
        parts.append(SharedPart("link", f"{names[source]} -> {names[target]}", 1.0))
    return tuple(parts)


def parse_topology(text: str) -> dict[str, str]:
    """Return the leaf switch of each host.

    The file of `rankmend fabric topology`, Slurm's topology.conf (SwitchName=leaf1 Nodes=node[01-16,20]), or lines of
    "host switch".
    """
    if text.lstrip().startswith("{"):
        return leaf_switches(decode_topology(text))
    switch_of: dict[str, str] = {}
    lines = text.splitlines()
    if len(lines) > LINES_MAX:
        raise SourceError(f"{len(lines)} lines of topology: more than {LINES_MAX}")
    for number, line in enumerate(lines):
        words = line.partition("#")[0].split()
        if not words:
            continue
        pairs = {
            key.lower(): value for key, equals, value in (w.partition("=") for w in words) if equals
        }
        if "switchname" in pairs:
            for host in expand_hosts(pairs.get("nodes", "")):
                switch_of[host] = pairs["switchname"]
        elif len(words) == 2 and not pairs:
            switch_of[words[0]] = words[1]
        else:
            raise SourceError(f"topology, line {number + 1}: {line[:80]!r}")
        if len(switch_of) > NAMES_MAX:
            raise SourceError(f"more than {NAMES_MAX} hosts in the topology")
    if not switch_of:
        raise SourceError("the topology names no host")
    return switch_of


def expand_hosts(text: str) -> tuple[str, ...]:
    """Return the hosts of a Slurm host list such as ``gpu[01-03,7],login1``."""
    hosts: list[str] = []
    for part in re.findall(r"[^,\[\]]*(?:\[[^\]]*\][^,\[\]]*)?", text):
        if not part:
            continue
        prefix, bracket, rest = part.partition("[")
        if not bracket:
            hosts.append(prefix)
            continue
        inner, _close, suffix = rest.partition("]")
        for item in inner.split(","):
            match = _RANGE.match(item)
            if match is None:
                raise SourceError(f"not a host list: {text[:80]!r}")
            low, high = int(match["low"]), int(match["high"] or match["low"])
            if high - low >= NAMES_MAX or len(hosts) > NAMES_MAX:
                raise SourceError(f"more than {NAMES_MAX} hosts in {text[:80]!r}")
            width = len(match["low"])
            hosts.extend(f"{prefix}{value:0{width}d}{suffix}" for value in range(low, high + 1))
    return tuple(hosts)

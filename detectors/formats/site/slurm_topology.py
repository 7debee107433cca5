"""What hosts hang on: Slurm's topology.conf or topology.yaml, lines of "host switch", or the file of `rankmend fabric topology`.

Sources: topology.conf(5), topology.yaml(5) and `_print_topo_record` of Slurm's plugins, 22.05 to 26.05. Blocks came with 23.11, topology.yaml with 25.05.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from detectors.formats.site.host_list import expand_hosts
from detectors.network_topology import (
    EDGES_MAX,
    NAME_CHARACTERS_MAX,
    EdgeOrigin,
    NetworkTopology,
    NodeBlock,
    decode_topology,
    edge,
    leaf_switches,
)
from detectors.parts.fleet_parts import FleetParts, find_parts
from rankmend.errors import SourceError
from rankmend.printable import is_printable

LINES_MAX: Final = 100_000
# As s_p_parse_line of Slurm: blanks around the sign, and values in quotation marks.
_PAIR: Final = re.compile(r'(?<!\w)(\w+)\s*=\s*(?:"([^"]*)"|(\S+))', re.ASCII)
_YAML: Final = re.compile(r"\s*(?:#[^\n]*\n\s*)*(?:---|-\s+topology\s*:)")
# Sizes that Slurm plans with, and blocks that it makes of its own accord out of neighbours in the file: nothing that is there.
_PLANNED: Final = frozenset({"blocksizes", "blocklevels", "aggregatedblock"})


def parse_topology(text: bytes | str) -> dict[str, str]:
    """Return the leaf switch of each host: see `parse_network`."""
    return leaf_switches(parse_network(text))


def parse_parts(text: bytes | str) -> FleetParts:
    """Return what each host hangs on: see `parse_network`."""
    return find_parts(parse_network(text))


def parse_network(text: bytes | str) -> NetworkTopology:
    """Return the topology of a file; raise SourceError for anything else.

    The file of `rankmend fabric topology`; Slurm's topology.conf (SwitchName=leaf1 Nodes=node[01-16,20], SwitchName=top
    Switches=leaf[1-4], BlockName=rack1 Nodes=node[01-18]), topology.yaml, or what `scontrol show topology` prints; or lines of "host switch".
    """
    if isinstance(text, bytes):
        text = _decode(text)
    if text.lstrip().startswith("{"):
        return decode_topology(text)
    reported = _Told()
    if _YAML.match(text):
        _read_yaml(text, reported)
    else:
        _read_lines(text, reported)
    return reported.topology()


@dataclass(slots=True)
class _Told:
    """What a file has told so far."""

    switches_of: dict[tuple[str, bool], list[str]] = field(default_factory=dict)
    blocks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    count: int = 0

    def hang(self, below: str, is_node: bool, switch: str) -> None:
        self.switches_of.setdefault((below, is_node), []).append(switch)
        self._count(1)

    def add_block(self, name: str, nodes: tuple[str, ...]) -> None:
        if name in self.blocks:
            raise SourceError(f"block {name} is listed twice")
        self.blocks[name] = tuple(dict.fromkeys(nodes))
        self._count(len(nodes))

    def topology(self) -> NetworkTopology:
        if not self.blocks and not any(is_node for _below, is_node in self.switches_of):
            raise SourceError("the topology names no host")
        edges = tuple(
            # A node stands below one leaf in Slurm: the last line holds, as it does there.
            edge(below, switch, EdgeOrigin.SLURM, is_node=is_node)
            for (below, is_node), switches in self.switches_of.items()
            for switch in (switches[-1:] if is_node else dict.fromkeys(switches))
        )
        return NetworkTopology(edges, blocks=tuple(NodeBlock(name, nodes) for name, nodes in self.blocks.items()))  # fmt: skip

    def _count(self, more: int) -> None:
        self.count += more
        if self.count > EDGES_MAX:
            raise SourceError(f"more than {EDGES_MAX} edges in the topology")


def _decode(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise SourceError(
            f"topology, line {line}: byte 0x{body[error.start]:02x} is not UTF-8"
        ) from error


def _read_lines(text: str, reported: _Told) -> None:
    lines = text.splitlines()
    if len(lines) > LINES_MAX:
        raise SourceError(f"{len(lines)} lines of topology: more than {LINES_MAX}")
    for number, line in _whole_lines(lines):
        try:
            _read_line(line, reported)
        except SourceError as error:
            raise SourceError(f"topology, line {number}: {error}") from error


def _whole_lines(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield each line without its comment and with those that go on after a backslash, and its number."""
    first, held = 1, ""
    for number, line in enumerate(lines, 1):
        if not held:
            first = number
        text = line.partition("#")[0].rstrip()
        held += text.removesuffix("\\")
        if not text.endswith("\\"):
            yield first, held
            held = ""
    yield first, held


def _read_line(line: str, reported: _Told) -> None:
    pairs = {item[1].lower(): item[2] or item[3] or "" for item in _PAIR.finditer(line)}
    words = _PAIR.sub("", line).split()
    if not words and (not pairs or next(iter(pairs)) in _PLANNED):
        return
    if len(words) == 2 and not pairs:
        reported.hang(_name(words[0]), True, _name(words[1]))
    elif "switchname" in pairs:
        switch = _name(pairs["switchname"])
        if pairs.get("level", "0") != "0":
            pairs["nodes"] = ""  # `scontrol` prints all nodes below: these hang on lower switches
        for key, is_node in (("nodes", True), ("switches", False)):
            for below in expand_hosts(pairs[key]) if pairs.get(key) else ():
                reported.hang(below, is_node, switch)
    elif "blockname" in pairs:
        name = _name(pairs["blockname"])
        if pairs.get("nodes"):  # Slurm has blocks without nodes, for those that join later
            reported.add_block(name, expand_hosts(pairs["nodes"]))
    else:
        raise SourceError(f"neither a switch, a block nor 'host switch': {line[:80]!r}")


def _name(text: str) -> str:
    if not 1 <= len(text) <= NAME_CHARACTERS_MAX or not is_printable(text):
        raise SourceError(
            f"{text!r:.80} is not a name: 1 to {NAME_CHARACTERS_MAX} printable characters"
        )
    return text


class _YamlSwitch(msgspec.Struct):
    switch: str
    nodes: str = ""
    children: str = ""


class _YamlTree(msgspec.Struct):
    switches: list[_YamlSwitch] = []


class _YamlBlock(msgspec.Struct):
    block: str
    nodes: str = ""


class _YamlBlocks(msgspec.Struct):
    blocks: list[_YamlBlock] = []


class _YamlTopology(msgspec.Struct):
    topology: str
    cluster_default: bool = False
    tree: _YamlTree | None = None
    block: _YamlBlocks | None = None


def _read_yaml(text: str, reported: _Told) -> None:
    """Read topology.yaml: of several topologies the cluster's default comes first, and what it names holds."""
    try:
        found = msgspec.yaml.decode(text, type=list[_YamlTopology])
    except ImportError as error:
        raise SourceError("topology.yaml is read with PyYAML, which is not installed: `pip install pyyaml`, or give what `scontrol show topology` prints") from error  # fmt: skip
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SourceError(f"not a topology.yaml of Slurm: {error}") from error
    found.sort(key=lambda item: not item.cluster_default)
    for item in found:
        try:
            _read_tree(item.tree or _YamlTree(), reported)
            _read_blocks(item.block or _YamlBlocks(), reported)
        except SourceError as error:
            raise SourceError(f"topology {item.topology!r:.80}: {error}") from error


def _read_tree(tree: _YamlTree, reported: _Told) -> None:
    known = set(reported.switches_of)
    for item in tree.switches:
        switch = _name(item.switch)
        for hosts, is_node in ((item.nodes, True), (item.children, False)):
            for below in expand_hosts(hosts) if hosts else ():
                if (below, is_node) not in known:
                    reported.hang(below, is_node, switch)


def _read_blocks(blocks: _YamlBlocks, reported: _Told) -> None:
    known = set(reported.blocks)
    for block in blocks.blocks:
        if block.nodes and block.block not in known:
            reported.add_block(_name(block.block), expand_hosts(block.nodes))

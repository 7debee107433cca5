"""Prints the ACS of each PCIe bridge above a GPU or a network card, a line of JSON each: a program of the root helper's.

A process of its own because a bridge that does not wake up can hold it. Started by `rankmend.parts_path` with ``SYSFS [EXCLUDED ...]``.
"""

from collections.abc import Sequence
from pathlib import Path

from agent.sources.pcie_acs import encode_line, list_bridges, read_acs


def main(arguments: Sequence[str]) -> None:
    sysfs_root = Path(arguments[0])
    for bridge in read_acs(sysfs_root, list_bridges(sysfs_root, arguments[1:])):
        print(encode_line(bridge), flush=True)  # what was read before a bridge hangs is not lost

"""Prints the memory of every transceiver, a line of JSON each: a program of the root helper's.

A process of its own because a driver can hang in it. Started by `rankmend.parts_path` with ``SYSFS [EXCLUDED ...]``.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from agent.root_helper.program_list import is_excluded
from agent.sources.network_driver import Ethtool
from rankmend.errors import NoSourceError, SourceError

DEVICES_MAX: Final = 64


def read_all(
    sysfs_root: Path, excluded: Sequence[str], read: Callable[[str], bytes]
) -> Iterator[str]:
    """Return one line for each network device that has a transceiver, or fails to tell of it."""
    for path in sorted((sysfs_root / "class" / "net").glob("*"))[:DEVICES_MAX]:
        if not (path / "device").exists() or is_excluded(path.name, excluded):
            continue  # bridges, bonds and the like have no device below
        try:
            yield json.dumps({"device": path.name, "memory": read(path.name).hex()})
        except NoSourceError:
            continue
        except SourceError as error:
            yield json.dumps({"device": path.name, "error": str(error)})


def main(arguments: Sequence[str]) -> None:
    ethtool = Ethtool()
    for line in read_all(Path(arguments[0]), arguments[1:], ethtool.module_memory):
        print(line, flush=True)  # what was read before a driver hangs is not lost

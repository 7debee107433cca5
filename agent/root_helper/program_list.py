"""The fixed list: which programs answer a query, on devices that the helper finds by itself.

Sources: ipmitool(1), smartctl(8), nvme-smart-log(1). Everything here only reads.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from agent.root_helper.program_runner import Program
from agent.root_helper.questions import HelperQuery
from rankmend.parts_path import program

DISKS_MAX: Final = 64
SEL_NEWEST: Final = 200  # entries; the whole log takes 15 to 33 s (canonical hardware exporter #62)
_FOLDERS: Final = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
IPMI_DEVICES: Final = ("ipmi0", "ipmi/0", "ipmidev/0")  # as ipmitool looks for them
_DISK: Final = re.compile(r"sd[a-z]{1,3}")
_NVME: Final = re.compile(r"nvme\d{1,3}")


def program_paths(name: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for folder in _FOLDERS)


@dataclass(frozen=True, slots=True)
class Paths:
    """Where programs and devices are."""

    ipmitool: tuple[str, ...] = program_paths("ipmitool")
    smartctl: tuple[str, ...] = program_paths("smartctl")
    nvme: tuple[str, ...] = program_paths("nvme")
    python: tuple[str, ...] = (sys.executable,)
    devices: Path = Path("/dev")
    sysfs: Path = Path("/sys")


def programs_of(query: HelperQuery, paths: Paths, excluded: Sequence[str]) -> tuple[Program, ...]:
    """Return what to run for a query; nothing where this node has no such device."""
    match query:
        case HelperQuery.IPMI_SENSORS:
            return _ipmi(
                paths,
                # -v adds the thresholds, which lie in the records that are read anyhow
                Program("full", paths.ipmitool, ("-c", "-v", "sdr", "elist", "full"), 40.0),
                Program("compact", paths.ipmitool, ("-c", "sdr", "elist", "compact"), 20.0),
            )
        case HelperQuery.IPMI_EVENTS:
            newest = ("-c", "sel", "elist", "last", str(SEL_NEWEST))
            return _ipmi(
                paths,
                Program("info", paths.ipmitool, ("sel", "info"), 10.0),
                Program("list", paths.ipmitool, newest, 45.0),
            )
        case HelperQuery.DISK_SMART:
            return tuple(
                Program(
                    disk,
                    paths.smartctl,
                    # a disk that sleeps is not woken: it answers nothing
                    (
                        *("--json=c", "--nocheck=standby,0"),
                        *("--info", "--health", "--attributes", f"{paths.devices}/{disk}"),
                    ),
                    10.0,
                )
                for disk in (*_disks(paths, excluded), *_nvme_controllers(paths, excluded))
            )
        case HelperQuery.NVME_SMART:
            return tuple(
                Program(
                    disk,
                    paths.nvme,
                    ("smart-log", f"{paths.devices}/{disk}", "--output-format=json"),
                    10.0,
                )
                for disk in _nvme_controllers(paths, excluded)
            )
        case HelperQuery.TRANSCEIVERS:
            module = ("-I", *program("agent.root_helper.transceivers"))
            return (Program("all", paths.python, (*module, str(paths.sysfs), *excluded), 45.0),)
        case HelperQuery.PCIE_ACS:
            module = ("-I", *program("agent.root_helper.bridges"))
            return (Program("all", paths.python, (*module, str(paths.sysfs), *excluded), 10.0),)


def _ipmi(paths: Paths, *programs: Program) -> tuple[Program, ...]:
    return programs if any((paths.devices / name).exists() for name in IPMI_DEVICES) else ()


def _disks(paths: Paths, excluded: Sequence[str]) -> list[str]:
    return _names(paths.sysfs / "block", _DISK, excluded)


def _nvme_controllers(paths: Paths, excluded: Sequence[str]) -> list[str]:
    return _names(paths.sysfs / "class" / "nvme", _NVME, excluded)


def _names(folder: Path, pattern: re.Pattern[str], excluded: Sequence[str]) -> list[str]:
    try:
        found = [path.name for path in folder.iterdir() if pattern.fullmatch(path.name)]
    except OSError:
        return []
    allowed = [name for name in found if not is_excluded(name, excluded)]
    return sorted(allowed, key=lambda name: (len(name), name))[:DISKS_MAX]


def is_excluded(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)

"""Errors of the host's memory, by memory controller and module, as the EDAC drivers count them.

Source: Linux Documentation/admin-guide/ras.rst and Documentation/ABI/testing/sysfs-devices-edac.
Files:  <root>/devices/system/edac/mc/mc*/{ce_count,ue_count,ce_noinfo_count,ue_noinfo_count},
        mc*/{dimm,rank}*/dimm_{ce_count,ue_count,label,location}; where there are none (before
        3.6, or some drivers): mc*/csrow*/ch*_{ce_count,dimm_label}, csrow*/ue_count.
Cost:   2 small reads a module.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agent.collectors.host import parse_number
from agent.metrics import Family, Metric, counter, gauge
from rankmend.errors import NoSourceError, SourceError

_LABEL_CHARS_MAX: Final = 64
_MODULE: Final = re.compile(r"(dimm|rank)\d+")
_CHANNEL: Final = re.compile(r"(ch\d+)_ce_count")
_CONTROLLER_COUNTS: Final = (
    ("corrected", "ce_count"),
    ("uncorrected", "ue_count"),
    ("corrected_unplaced", "ce_noinfo_count"),
    ("uncorrected_unplaced", "ue_noinfo_count"),
)

Labels = tuple[tuple[str, str], ...]

_MODULE_LABELS: Final = ("controller", "module")
FAMILIES: Final[tuple[Family, ...]] = (
    counter(
        "edac_controller_corrected",
        "",
        ("controller",),
        "Corrected memory errors of a memory controller since its driver was loaded.",
    ),
    counter("edac_controller_uncorrected", "", ("controller",), "Its uncorrected memory errors."),
    counter(
        "edac_controller_corrected_unplaced",
        "",
        ("controller",),
        "Corrected memory errors of which the driver can't tell the module.",
    ),
    counter(
        "edac_controller_uncorrected_unplaced",
        "",
        ("controller",),
        "Uncorrected memory errors of which the driver can't tell the module.",
    ),
    counter(
        "edac_module_corrected", "", _MODULE_LABELS, "Corrected memory errors of a memory module."
    ),
    counter(
        "edac_module_uncorrected",
        "",
        _MODULE_LABELS,
        "Uncorrected memory errors of a memory module.",
    ),
    gauge(
        "edac_module_info",
        "",
        (*_MODULE_LABELS, "label", "location"),
        "What is printed beside the module's slot, and where it is; always 1.",
    ),
    gauge(
        "edac_file_success", "", ("controller", "file"), "0 for a count that can't be understood."
    ),
)


class EdacCollector:
    name = "edac"
    interval_s = 10.0

    def __init__(self, sysfs_root: Path) -> None:
        self._root = sysfs_root / "devices" / "system" / "edac" / "mc"

    def collect(self) -> Iterator[Metric]:
        controllers = sorted(self._root.glob("mc[0-9]*"), key=_number)
        if not controllers:
            raise NoSourceError(f"no memory controller under {self._root}: no EDAC driver loaded")
        for controller in controllers:
            labels = (("controller", controller.name),)
            for name, file in _CONTROLLER_COUNTS:
                yield from _read_count(controller / file, f"controller_{name}", labels)
            modules = sorted(
                (path for path in controller.iterdir() if _MODULE.fullmatch(path.name)),
                key=_number,
            )
            for module in modules:
                yield from _read_module(module, (*labels, ("module", module.name)))
            if not modules:
                for row in sorted(controller.glob("csrow[0-9]*"), key=_number):
                    yield from _read_row(row, labels)


def _read_module(module: Path, labels: Labels) -> Iterator[Metric]:
    about = tuple(
        (name, _read_text(module / f"dimm_{name}")[:_LABEL_CHARS_MAX])
        for name in ("label", "location")
    )
    yield Metric("rankmend_edac_module_info", 1, (*labels, *about))
    yield from _read_count(module / "dimm_ce_count", "module_corrected", labels)
    yield from _read_count(module / "dimm_ue_count", "module_uncorrected", labels)


def _read_row(row: Path, controller: Labels) -> Iterator[Metric]:
    """Return the counts of a chip-select row: corrected ones by channel, the others by row."""
    labels = (*controller, ("module", row.name))
    yield from _read_count(row / "ue_count", "module_uncorrected", labels)
    for name in sorted(path.name for path in row.iterdir()):
        if match := _CHANNEL.fullmatch(name):
            channel = match.group(1)
            labels = (*controller, ("module", f"{row.name}-{channel}"))
            label = _read_text(row / f"{channel}_dimm_label")[:_LABEL_CHARS_MAX]
            about = (("label", label), ("location", f"{row.name} {channel}"))
            yield Metric("rankmend_edac_module_info", 1, (*labels, *about))
            yield from _read_count(row / name, "module_corrected", labels)


def _read_count(path: Path, name: str, labels: Labels) -> Iterator[Metric]:
    """Return one counter; of a broken one only that it is broken, of an absent one nothing."""
    success = (labels[0], ("file", f"{path.parent.name}/{path.name}"))
    try:
        count = parse_number(path.read_text(encoding="ascii").strip())
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, UnicodeDecodeError, SourceError):
        yield Metric("rankmend_edac_file_success", 0, success)
        return
    yield Metric(f"rankmend_edac_{name}_total", count, labels)


def _read_text(path: Path) -> str:
    try:
        return " ".join(path.read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return ""


def _number(path: Path) -> tuple[str, int]:
    """Return the sort key that puts mc10 behind mc9."""
    match = re.search(r"\d+", path.name)
    return (path.name[: match.start()], int(match.group())) if match else (path.name, -1)

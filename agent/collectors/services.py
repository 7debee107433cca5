"""Services that must run, and kernel modules that must be loaded.

Source: ``systemctl show`` (one call for all units, bounded in time and output), systemd.unit(5);
        <sysfs>/module/<name>, Linux Documentation/ABI/stable/sysfs-module.
Cost:   one process of 8 ms a run; no privilege.

Units named in the configuration must run: one that is not even installed is down. Of the units in
`USUAL_UNITS`, without which GPUs or logins of jobs stop working, those count that this node starts
at boot (enabled). The IMEX daemon counts only where a domain is configured, and one that was stopped, not failed, does not
count against the node: prologs start it for a job and epilogs stop it.
"""

import contextlib
import os
import selectors
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

from agent.collectors.imex import UNIT as IMEX_UNIT
from agent.collectors.imex import read_domain
from agent.metrics import Family, Metric, counter, gauge
from rankmend.errors import NoSourceError, SourceError

USUAL_UNITS: Final = (
    "nvidia-fabricmanager.service",
    "nvidia-persistenced.service",
    IMEX_UNIT,
    "munge.service",
    "slurmd.service",
    "opensm.service",
    "openibd.service",
    "chronyd.service",
    "chrony.service",
    "systemd-timesyncd.service",
    "docker.service",
    "containerd.service",
    "kubelet.service",
)
ANSWER_S_MAX: Final = 5.0
_OUTPUT_BYTES_MAX: Final = 65_536
_PROPERTIES: Final = "Id,LoadState,ActiveState,SubState,UnitFileState,NRestarts,Result"
_ENABLED: Final = frozenset({"enabled", "enabled-runtime"})
_TEXT_CHARS_MAX: Final = 64

FAMILIES: Final[tuple[Family, ...]] = (
    gauge("service_active", "", ("unit",), "1 when a systemd unit that ought to run does."),
    counter("service_restarts", "", ("unit",), "Times that systemd has restarted it."),
    gauge(
        "service_info",
        "",
        ("unit", "load", "active", "sub", "result"),
        "Its state in systemd's words; always 1.",
    ),
    gauge(
        "module_loaded", "", ("module",), "1 when a kernel module of the configuration is there."
    ),
)


@dataclass(frozen=True, slots=True)
class SystemdUnit:
    name: str
    load: str
    active: str
    sub: str
    file: str
    result: str
    restarts: int | None

    @property
    def is_active(self) -> bool:
        return self.active in ("active", "reloading", "refreshing")


def parse_units(text: str) -> list[SystemdUnit]:
    """Return the units of a ``systemctl show`` with several: blocks of ``Key=value`` lines."""
    units = []
    for block in text.split("\n\n"):
        keys = dict(line.partition("=")[::2] for line in block.strip().splitlines())
        if not keys:
            continue
        if not keys.get("Id") or not keys.get("ActiveState"):
            raise SourceError(f"systemctl shows no unit: {block[:200]!r}")
        restarts = keys.get("NRestarts", "")
        units.append(
            SystemdUnit(
                name=keys["Id"],
                load=keys.get("LoadState", ""),
                active=keys["ActiveState"],
                sub=keys.get("SubState", ""),
                file=keys.get("UnitFileState", ""),
                result=keys.get("Result", ""),
                restarts=int(restarts) if restarts.isascii() and restarts.isdigit() else None,
            )
        )
    return units


def unit_name(name: str) -> str:
    """Return a configured name as systemd writes it: ``munge`` is ``munge.service``."""
    return name if "." in name else f"{name}.service"


class Systemctl:
    """Runs systemctl, bounded. A call that can't be killed is not repeated while it hangs."""

    def __init__(
        self,
        program: str = "systemctl",
        answer_s_max: float = ANSWER_S_MAX,
        runtime_folder: Path = Path("/run/systemd/system"),
    ) -> None:
        self._program = program
        self._answer_s_max = answer_s_max
        self._runtime_folder = runtime_folder
        self._stuck: subprocess.Popen[bytes] | None = None

    def show(self, units: Sequence[str]) -> str:
        if not self._runtime_folder.is_dir():
            raise NoSourceError(f"no {self._runtime_folder}: systemd does not run here")
        if self._stuck is not None and self._stuck.poll() is None:
            raise SourceError("an earlier systemctl still hangs")
        self._stuck = None
        command = [self._program, "show", f"--property={_PROPERTIES}", "--", *units]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "LC_ALL": "C", "SYSTEMD_PAGER": ""},
            )
        except FileNotFoundError as error:
            raise NoSourceError(f"no {self._program}") from error
        except OSError as error:
            raise SourceError(f"cannot run {self._program}") from error
        try:
            output = self._read(process)
        finally:
            self._end(process)
        if process.returncode != 0:
            raise SourceError(f"{self._program} show ended with {process.returncode}")
        return output.decode("utf-8", "replace")

    def _read(self, process: "subprocess.Popen[bytes]") -> bytes:
        assert process.stdout is not None
        output = b""
        deadline_s = monotonic() + self._answer_s_max
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline_s - monotonic())):
                data = os.read(process.stdout.fileno(), _OUTPUT_BYTES_MAX)
                output += data
                if not data:
                    return output
                if len(output) > _OUTPUT_BYTES_MAX:
                    raise SourceError(f"{self._program} said more than {_OUTPUT_BYTES_MAX} bytes")
        raise SourceError(f"{self._program} gave no answer within {self._answer_s_max:g} s")

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
            return
        process.kill()
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._stuck = process


class ServicesCollector:
    name = "services"
    interval_s = 30.0

    def __init__(
        self,
        sysfs_root: Path,
        systemctl: Systemctl | None,
        required: Sequence[str] = (),
        modules: Sequence[str] = (),
        root: Path = Path("/"),
    ) -> None:
        """``systemctl`` None: the tree is a recorded one, and its services are not here. ``root``: of /etc."""
        self._root = root
        self._modules_root = sysfs_root / "module"
        self._systemctl = systemctl
        self._required = {unit_name(name) for name in required}
        self._modules = tuple(modules)

    def collect(self) -> Iterator[Metric]:
        for module in self._modules:  # the kernel writes _ where people write -
            is_loaded = (self._modules_root / module.replace("-", "_")).is_dir()
            yield Metric("rankmend_module_loaded", int(is_loaded), (("module", module),))
        if self._systemctl is None:
            if not self._modules:
                raise NoSourceError("services are not read with a recorded tree")
            return
        names = sorted({*USUAL_UNITS, *self._required})
        try:
            units = {unit.name: unit for unit in parse_units(self._systemctl.show(names))}
        except NoSourceError:
            if not self._modules and not self._required:
                raise
            units = {}
        yield from self._describe(units)

    def _describe(self, units: Mapping[str, SystemdUnit]) -> Iterator[Metric]:
        for name in sorted(self._required - units.keys()):
            yield Metric("rankmend_service_active", 0, (("unit", name),))
        for name, unit in sorted(units.items()):
            if name not in self._required and unit.file not in _ENABLED:
                continue
            if name not in self._required and name == IMEX_UNIT and not self._needs_imex(unit):
                continue
            labels = (("unit", name),)
            yield Metric("rankmend_service_active", int(unit.is_active), labels)
            if unit.restarts is not None:
                yield Metric("rankmend_service_restarts_total", unit.restarts, labels)
            state = (unit.load, unit.active, unit.sub, unit.result)
            about = zip(("load", "active", "sub", "result"), state, strict=True)
            named = tuple((key, value[:_TEXT_CHARS_MAX]) for key, value in about)
            yield Metric("rankmend_service_info", 1, (*labels, *named))

    def _needs_imex(self, unit: SystemdUnit) -> bool:
        try:
            domain = read_domain(self._root)
        except (NoSourceError, SourceError):
            return False
        return domain is not None and (unit.is_active or unit.active == "failed")

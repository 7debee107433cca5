"""Readings of the BMC, through Redfish: fans, power supplies, inlet, power, coolant loops, leaks.

Source: a BMC given by configuration (`[redfish]`); resources as in detectors/formats/redfish.py:
        ThermalSubsystem and PowerSubsystem of every chassis, or the older Thermal and Power where
        a chassis lacks them, the Sensors of a chassis, the coolant distribution units below ThermalEquipment, and the power
        distribution units below PowerEquipment.
Cost:   5 requests for a BMC with the older resources, about 10 a chassis else; a BMC is slow (0.05
        to 3 s a request), hence an interval of two minutes. GET only.

A resource that fails is counted and takes no other with it. A BMC that refuses the user is left
alone for `REFUSED_S`: many lock the account after a few tries.
"""

import ssl
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from agent.metrics import SENSOR_LABELS, Family, Metric, gauge
from detectors.formats import redfish as forms
from detectors.formats.redfish import BmcPart, BmcReading, Item, Page
from rankmend.clock import Clock
from rankmend.errors import ConfigError, NoSourceError, SourceError
from rankmend.redfish_session import (
    BmcAddress,
    BmcRefusedError,
    RedfishSession,
    make_context,
    parse_url,
    read_credentials,
)

ROOT: Final = "/redfish/v1/"
RUN_S_MAX: Final = 60.0
REQUESTS_MAX: Final = 400  # an HGX baseboard shows some 40 chassis
ITEMS_MAX: Final = 4_000
REFUSED_S: Final = 1_800.0  # iDRAC and iLO lock for 5 to 10 minutes after 3 to 5 tries

FAMILIES: Final[tuple[Family, ...]] = (
    *(
        gauge(f"redfish_{subject}", unit, SENSOR_LABELS, text)
        for subject, unit, text in (
            ("temperature_celsius", "celsius", "Temperature that the BMC measures."),
            ("temperature_max_celsius", "celsius", "The sensor's upper caution threshold."),
            ("temperature_crit_celsius", "celsius", "The sensor's upper critical threshold."),
            ("fan_rpm", "revolutions per minute", "Speed of a fan."),
            ("fan_ratio", "ratio", "Speed of a fan, of its most."),
            ("power_watts", "watts", "Power that a chassis takes."),
            ("power_capacity_watts", "watts", "Power that a chassis may take."),
            ("supply_input_watts", "watts", "Power that a power supply takes."),
            ("supply_output_watts", "watts", "Power that a power supply gives."),
            ("supply_capacity_watts", "watts", "Power that a power supply can give."),
            ("supply_input_volts", "volts", "Voltage at the input of a power supply."),
            ("coolant_supply_celsius", "celsius", "Temperature of the coolant that comes in."),
            ("coolant_return_celsius", "celsius", "Temperature of the coolant that goes out."),
            (
                "coolant_flow_liters_per_second",
                "liters per second",
                "Flow of the coolant.",
            ),
            ("coolant_supply_pascals", "pascals", "Pressure of the coolant that comes in."),
            ("coolant_delta_pascals", "pascals", "Pressure that the coolant loses on its way."),
            ("mains_power_watts", "watts", "Power of a mains circuit of a distribution unit."),
            (
                "mains_load_ratio",
                "ratio",
                "Highest current of a mains circuit, of what it is rated for.",
            ),
        )
    ),
    gauge(
        "redfish_health_id",
        "",
        ("device", "sensor", "part"),
        "Health as the BMC judges it: 0 OK, 1 warning, 2 critical.",
    ),
    gauge(
        "redfish_leak_state_id", "", SENSOR_LABELS, "Leak detector: 0 OK, 1 warning, 2 critical."
    ),
    gauge("redfish_requests", "", (), "Requests of the last run to the BMC."),
    gauge(
        "redfish_request_failures",
        "",
        (),
        "Requests of the last run that the BMC did not answer well; what they ask for is missing.",
    ),
    gauge(
        "redfish_complete",
        "",
        (),
        "1 when the last run has read everything, 0 when something failed or a bound was reached.",
    ),
)


class Settings(Protocol):
    """What `agent.config.Redfish` says."""

    @property
    def url(self) -> str | None: ...
    @property
    def credentials_file(self) -> str | None: ...
    @property
    def ca_file(self) -> str | None: ...
    @property
    def verify(self) -> bool: ...


class Session(Protocol):
    @property
    def requests(self) -> int: ...
    def get(self, path: str, deadline_s: float) -> dict[str, Any]: ...
    def close(self) -> None: ...


class RedfishCollector:
    name = "redfish"
    interval_s = 120.0

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._clock = clock
        self._address: BmcAddress | None = None
        self._context: ssl.SSLContext | None = None
        self._credentials_path = Path(settings.credentials_file or "")
        self._refused_until_s: float | None = None
        if settings.url is None:
            return
        self._address = parse_url(settings.url)
        if settings.credentials_file is None:
            raise ConfigError("redfish has a url and no credentials_file")
        read_credentials(self._credentials_path)  # a wrong file is refused at start
        if self._address.is_encrypted:
            self._context = make_context(settings.ca_file, settings.verify)

    def collect(self) -> Iterator[Metric]:
        if self._address is None:
            raise NoSourceError("no BMC is configured")
        now_s = self._clock.now_s()
        if self._refused_until_s is not None and now_s < self._refused_until_s:
            raise SourceError("the BMC has refused the user and is left alone for now")
        try:
            credentials = read_credentials(self._credentials_path)
        except ConfigError as error:
            raise SourceError(str(error)) from error
        session = RedfishSession(self._address, credentials, self._context, self._clock)
        try:
            walk = walk_bmc(session, now_s + RUN_S_MAX)
        except BmcRefusedError as error:
            self._refused_until_s = now_s + REFUSED_S
            raise SourceError(str(error)) from error
        finally:
            session.close()
        yield from show(walk, session.requests)


@dataclass(slots=True)
class Walk:
    """What one run has found."""

    session: Session
    deadline_s: float
    items: list[tuple[str, Item]] = field(default_factory=list)  # with the device's name
    seen: set[str] = field(default_factory=set)
    devices: Counter[str] = field(default_factory=Counter)
    failures: int = 0
    is_complete: bool = True
    expansion: str | None = None  # the query that brings a collection's members with it

    def get(self, path: str | None) -> Page | None:
        """Return a resource, or None where there is none, it fails or was seen before."""
        if path is None or path.rstrip("/") in self.seen:
            return None
        if len(self.seen) >= REQUESTS_MAX or len(self.items) >= ITEMS_MAX:
            self.is_complete = False
            return None
        self.seen.add(path.rstrip("/"))
        try:
            return self.session.get(path, self.deadline_s)
        except SourceError:
            self.failures += 1
            self.is_complete = False
            return None

    def each(self, path: str | None) -> Iterator[Page]:
        """Return the members of a collection that are there."""
        collection = self.get(path)
        for member in forms.members(collection) if collection else ():
            page = self.get(member)
            if page is not None and forms.is_there(page):
                yield page

    def add(self, device: str, items: Iterator[Item]) -> bool:
        found = [(device, item) for item in items]
        self.items += found
        return bool(found)

    def name_device(self, page: Page) -> str:
        name = forms.name_of(page)
        self.devices[name] += 1
        return name if self.devices[name] == 1 else f"{name} #{self.devices[name]}"


def walk_bmc(session: Session, deadline_s: float) -> Walk:
    """Return all that a BMC tells; SourceError where it does not even tell what it has."""
    walk = Walk(session, deadline_s)
    root = session.get(ROOT, deadline_s)
    chassis_path = forms.link(root, "Chassis")
    kinds = ("ThermalEquipment", "PowerEquipment")
    if chassis_path is None and not any(forms.link(root, kind) for kind in kinds):
        raise SourceError("the BMC shows no chassis")
    walk.expansion = forms.expansion(root)
    walk.seen.add(ROOT.rstrip("/"))
    chassis = {} if chassis_path is None else session.get(chassis_path, deadline_s)
    walk.seen.add((chassis_path or "").rstrip("/"))
    for path in forms.members(chassis):
        page = walk.get(path)
        if page is not None and forms.is_there(page):
            _read_chassis(walk, page)
    equipment = walk.get(forms.link(root, "ThermalEquipment")) or {}
    for name in ("CDUs", "CoolingLoops"):
        for page in walk.each(forms.link(equipment, name)):
            device = walk.name_device(page)
            walk.add(device, forms.parse_health(page, BmcPart.COOLING_UNIT))
            _read_coolant(walk, device, page)
    equipment = walk.get(forms.link(root, "PowerEquipment")) or {}
    for name in ("RackPDUs", "FloorPDUs", "Switchgear"):
        for page in walk.each(forms.link(equipment, name)):
            _read_distribution(walk, walk.name_device(page), page)
    if not walk.items:
        raise SourceError(f"the BMC shows no value; {walk.failures} requests have failed")
    return walk


def _read_chassis(walk: Walk, chassis: Page) -> None:
    device = walk.name_device(chassis)
    walk.add(device, forms.parse_health(chassis, BmcPart.CHASSIS))
    thermal = walk.get(forms.link(chassis, "ThermalSubsystem"))
    # some BMCs have the new resource with nothing in it, and the values in the old one
    if thermal is None or not _read_thermal(walk, device, thermal):
        old = walk.get(forms.link(chassis, "Thermal"))
        walk.add(device, forms.parse_thermal(old or {}))
    power = walk.get(forms.link(chassis, "PowerSubsystem"))
    if power is None or not _read_supplies(walk, device, power):
        old = walk.get(forms.link(chassis, "Power"))
        walk.add(device, forms.parse_power(old or {}))
    environment = walk.get(forms.link(chassis, "EnvironmentMetrics"))
    walk.add(device, forms.parse_environment(environment or {}))
    _read_sensors(walk, device, forms.link(chassis, "Sensors"))


def _read_sensors(walk: Walk, device: str, path: str | None) -> None:
    """Read a chassis' Sensors: by one request, or one by one where nothing else has temperatures.

    An HGX baseboard has some 300 of them, and a BMC takes 0.05 to 3 s a request.
    """
    if path is None:
        return
    if walk.expansion is not None:
        for page in forms.expanded(walk.get(path + walk.expansion) or {}):
            if forms.is_there(page):
                walk.add(device, forms.parse_sensor(page))
    elif not any(name == device and _is_temperature(item) for name, item in walk.items):
        for page in walk.each(path):
            walk.add(device, forms.parse_sensor(page))


def _is_temperature(item: Item) -> bool:
    return isinstance(item, BmcReading) and item.kind is forms.ReadingKind.TEMPERATURE


def _read_thermal(walk: Walk, device: str, thermal: Page) -> bool:
    metrics = walk.get(forms.link(thermal, "ThermalMetrics"))
    is_any = walk.add(device, forms.parse_thermal_metrics(metrics or {}))
    for page in walk.each(forms.link(thermal, "Fans")):
        is_any |= walk.add(device, forms.parse_fan(page))
    _read_coolant(walk, device, thermal)
    return is_any


def _read_coolant(walk: Walk, device: str, page: Page) -> None:
    for side in ("", "Primary", "Secondary"):  # both sides count their connectors from 1
        for connector in walk.each(forms.link(page, f"{side}CoolantConnectors")):
            walk.add(device, forms.parse_coolant_connector(connector, side.lower()))
    for pump in walk.each(forms.link(page, "Pumps")):
        walk.add(device, forms.parse_pump(pump))
    leaks = walk.get(forms.link(page, "LeakDetection"))
    if leaks is not None:
        walk.add(device, forms.parse_leak_groups(leaks))
        for detector in walk.each(forms.link(leaks, "LeakDetectors")):
            walk.add(device, forms.parse_leak_detector(detector))


def _read_distribution(walk: Walk, device: str, page: Page) -> None:
    walk.add(device, forms.parse_health(page, BmcPart.POWER_EQUIPMENT))
    for circuit in walk.each(forms.link(page, "Mains")):
        walk.add(device, forms.parse_circuit(circuit))
    own = [item for name, item in walk.items if name == device and isinstance(item, BmcReading)]
    if not any(item.kind is forms.ReadingKind.MAINS_POWER for item in own):
        metrics = walk.get(forms.link(page, "Metrics"))
        walk.add(device, forms.parse_distribution_metrics(metrics or {}))


def _read_supplies(walk: Walk, device: str, power: Page) -> bool:
    is_any = False
    for page in walk.each(forms.link(power, "PowerSupplies")):
        is_any |= walk.add(device, forms.parse_supply(page))
        metrics = walk.get(forms.link(page, "Metrics"))
        sensor = forms.name_of(page)
        is_any |= walk.add(device, forms.parse_supply_metrics(metrics or {}, sensor))
    return is_any


def show(walk: Walk, requests: int) -> Iterator[Metric]:
    """Return the metrics of a run; of two equal series the first counts."""
    yield Metric("rankmend_redfish_requests", requests)
    yield Metric("rankmend_redfish_request_failures", walk.failures)
    yield Metric("rankmend_redfish_complete", int(walk.is_complete))
    used: set[tuple[object, ...]] = set()
    for device, item in walk.items:
        if (key := _key(device, item)) in used:
            continue
        used.add(key)
        labels = (("device", device), ("sensor", item.sensor))
        if isinstance(item, BmcReading):
            yield Metric(f"rankmend_redfish_{item.kind.value}", item.value, labels)
        else:
            part = (*labels, ("part", item.part.value))
            yield Metric("rankmend_redfish_health_id", item.level.value, part)


def _key(device: str, item: Item) -> tuple[object, ...]:
    return (device, item.kind if isinstance(item, BmcReading) else item.part, item.sensor)

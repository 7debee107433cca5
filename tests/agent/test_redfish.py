"""Redfish against a small local BMC: both generations, and slow, broken and hostile answers."""

import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.assembly.privileged import RedfishSettings, check
from agent.collectors.redfish import REFUSED_S, REQUESTS_MAX, RedfishCollector, show, walk_bmc
from detectors.formats import redfish as forms
from rankmend.clock import SystemClock
from rankmend.errors import ConfigError, NoSourceError, SourceError
from rankmend.redfish_session import (
    BODY_BYTES_MAX,
    Credentials,
    RedfishSession,
    make_context,
    parse_url,
    read_credentials,
)
from tests.support.agent import PATIENT, FakeClock, values_of
from tests.support.eventually import DEADLINE_S, fault_lasts
from tests.support.redfish_bmc import Bmc, Special, load, respond

pytestmark = pytest.mark.process

CHASSIS = "/redfish/v1/Chassis"
NODE = "/redfish/v1/Chassis/System"


def settings_for(bmc: Bmc, folder: Path, scheme: str = "http", **more: Any) -> RedfishSettings:
    path = folder / "bmc.toml"
    path.write_text('user = "monitor"\npassword = "s3cret"\n')
    path.chmod(0o600)
    host = "localhost" if scheme == "https" else "127.0.0.1"
    return RedfishSettings(url=f"{scheme}://{host}:{bmc.port}", credentials_file=str(path), **more)


def collect(bmc: Bmc, folder: Path) -> dict[str, float]:
    return values_of(list(RedfishCollector(settings_for(bmc, folder), SystemClock()).collect()))


@contextmanager
def session_with(bmc: Bmc, request_s_max: float = 10.0) -> Iterator[RedfishSession]:
    address = parse_url(f"http://127.0.0.1:{bmc.port}")
    credentials = Credentials("monitor", "s3cret")
    session = RedfishSession(address, credentials, None, SystemClock(), request_s_max)
    try:
        yield session
    finally:
        session.close()


def test_subsystems_and_coolant_loops_are_read(tmp_path: Path) -> None:
    with Bmc(load("new.json")) as bmc:
        values = collect(bmc, tmp_path)

    assert values["redfish_fan_rpm{System,Bay1}"] == 9000
    assert values["redfish_fan_ratio{System,Bay1}"] == 0.45
    assert values["redfish_fan_rpm{System,Bay2}"] == 0  # a fan that stands is measured
    assert values["redfish_health_id{System,Bay2,fan}"] == 2
    assert values["redfish_temperature_celsius{System,Intake}"] == 24.8
    assert values["redfish_temperature_celsius{System,CPU1}"] == 61
    assert values["redfish_temperature_celsius{System,DIMM1Temp}"] == 44
    assert values["redfish_supply_input_watts{System,PSU1}"] == 1750
    assert values["redfish_supply_output_watts{System,PSU1}"] == 1680
    assert values["redfish_supply_input_volts{System,PSU1}"] == 230.2
    assert values["redfish_health_id{System,PSU2,supply}"] == 2
    assert values["redfish_power_watts{System,total}"] == 3400
    assert values["redfish_power_watts{HGX_GPU_1,total}"] == 612.5
    assert values["redfish_coolant_flow_liters_per_second{System,1}"] == pytest.approx(0.2)
    assert values["redfish_coolant_supply_celsius{System,1}"] == 32
    assert values["redfish_coolant_return_celsius{System,1}"] == 44.5
    assert values["redfish_coolant_delta_pascals{System,1}"] == 35_500
    assert values["redfish_leak_state_id{System,Tray}"] == 1
    assert values["redfish_coolant_supply_celsius{CDU1,primary 1}"] == 18
    assert values["redfish_coolant_supply_celsius{CDU1,secondary 1}"] == 31
    assert values["redfish_coolant_supply_pascals{CDU1,primary 1}"] == 210_000
    assert values["redfish_health_id{CDU1,CDU1,cooling_unit}"] == 1
    assert values["redfish_fan_rpm{CDU1,Pump1}"] == 2900
    assert values["redfish_leak_state_id{CDU1,Rope}"] == 2
    assert (values["redfish_complete"], values["redfish_request_failures"]) == (1, 0)


def test_older_resources_are_read(tmp_path: Path) -> None:
    with Bmc(load("old.json")) as bmc:
        values = collect(bmc, tmp_path)

    assert values["redfish_temperature_celsius{1,Inlet Temp}"] == 23
    assert values["redfish_temperature_max_celsius{1,Inlet Temp}"] == 42
    assert values["redfish_temperature_crit_celsius{1,Inlet Temp}"] == 47
    assert values["redfish_temperature_celsius{1,Temp}"] == 48
    assert values["redfish_temperature_celsius{1,Temp #2}"] == 51
    assert values["redfish_temperature_crit_celsius{1,Temp #2}"] == 93  # not on the first Temp
    assert "redfish_temperature_crit_celsius{1,Temp}" not in values
    assert values["redfish_fan_rpm{1,FAN1}"] == 9600
    assert values["redfish_fan_ratio{1,FAN2}"] == 0.31
    assert values["redfish_power_watts{1,System Power Control}"] == 3420
    assert values["redfish_supply_output_watts{1,PSU1}"] == 1680
    assert values["redfish_supply_input_volts{1,PSU2}"] == 0
    assert values["redfish_requests"] == 5


def test_what_is_absent_or_null_is_never_zero(tmp_path: Path) -> None:
    with Bmc(load("new.json")) as bmc:
        new = collect(bmc, tmp_path)
    with Bmc(load("old.json")) as bmc:
        old = collect(bmc, tmp_path)

    gone = ("PSU3", "Spare", "GPU9", "Internal", "Empty", "Other")
    assert not [name for name in (*new, *old) if any(part in name for part in gone)]


def test_empty_new_resource_falls_back_on_the_old_one(tmp_path: Path) -> None:
    pages = load("old.json")
    chassis = pages["/redfish/v1/Chassis/1"]
    chassis["ThermalSubsystem"] = {"@odata.id": "/redfish/v1/Chassis/1/ThermalSubsystem"}
    pages["/redfish/v1/Chassis/1/ThermalSubsystem"] = {"Id": "ThermalSubsystem"}

    with Bmc(pages) as bmc:
        values = collect(bmc, tmp_path)

    assert values["redfish_fan_rpm{1,FAN1}"] == 9600


HGX = "/redfish/v1/Chassis/HGX_GPU_0"


def sensors_of_a_baseboard(root: dict[str, Any]) -> dict[str, Any]:
    """Return a BMC whose only values are the Sensors of one chassis."""
    gpu = {
        "@odata.id": f"{HGX}/Sensors/GPU_0_Temp",
        "Id": "GPU_0_Temp",
        "ReadingType": "Temperature",
        "Reading": 41.5,
        "Thresholds": {"UpperCaution": {"Reading": 85}, "UpperCritical": {"Reading": 95}},
        "Status": {"State": "Enabled", "Health": "Warning"},
    }
    flow = {
        "@odata.id": f"{HGX}/Sensors/Flow",
        "Id": "Flow",
        "ReadingType": "LiquidFlowLPM",
        "Reading": 6,
    }
    off = {**gpu, "@odata.id": f"{HGX}/Sensors/Off", "Id": "Off", "Status": {"State": "Absent"}}
    humid = {**flow, "@odata.id": f"{HGX}/Sensors/Wet", "Id": "Wet", "ReadingType": "Humidity"}
    members = [gpu, flow, off, humid]
    links = [{"@odata.id": page["@odata.id"]} for page in members]
    return {
        "/redfish/v1/": {"Chassis": {"@odata.id": "/redfish/v1/Chassis"}, **root},
        "/redfish/v1/Chassis": {"Members": [{"@odata.id": HGX}]},
        HGX: {"Id": "HGX_GPU_0", "Sensors": {"@odata.id": f"{HGX}/Sensors"}},
        f"{HGX}/Sensors": {"Members": links},
        f"{HGX}/Sensors?$expand=.($levels=1)": {"Members": members},
        **{str(page["@odata.id"]): page for page in members},
    }


EXPANDS = {"ProtocolFeaturesSupported": {"ExpandQuery": {"NoLinks": True, "Levels": True}}}


@pytest.mark.parametrize(("root", "requests"), [(EXPANDS, 4), ({}, 8)])
def test_sensors_of_a_chassis_come_with_one_request_where_the_bmc_can(
    root: dict[str, Any], requests: int, tmp_path: Path
) -> None:
    with Bmc(sensors_of_a_baseboard(root)) as bmc:
        values = collect(bmc, tmp_path)

    assert len(bmc.asked) == requests
    assert {name: value for name, value in values.items() if "HGX" in name} == {
        "redfish_temperature_celsius{HGX_GPU_0,GPU_0_Temp}": 41.5,
        "redfish_temperature_max_celsius{HGX_GPU_0,GPU_0_Temp}": 85,
        "redfish_temperature_crit_celsius{HGX_GPU_0,GPU_0_Temp}": 95,
        "redfish_health_id{HGX_GPU_0,GPU_0_Temp,temperature}": 1,
        "redfish_coolant_flow_liters_per_second{HGX_GPU_0,Flow}": 0.1,
    }


def hang(released: Event) -> Special:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        released.wait(DEADLINE_S)
        handler.close_connection = True

    return answer


def drip(released: Event) -> Special:
    """Send one byte at a time, which never trips a socket's own timeout."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        while not released.is_set():
            fault_lasts(0.05)
            handler.wfile.write(b" ")
            handler.wfile.flush()

    return answer


def drip_headers(released: Event) -> Special:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        while not released.is_set():
            fault_lasts(0.05)
            handler.wfile.write(b"x")
            handler.wfile.flush()

    return answer


@pytest.mark.parametrize("slow", [hang, drip, drip_headers])
def test_slow_resource_costs_its_own_bound_and_not_the_others(
    slow: Callable[[Event], Special],
) -> None:
    with Bmc(load("new.json")) as bmc:
        bmc.pages[f"{NODE}/EnvironmentMetrics"] = slow(bmc.released)
        with session_with(bmc, request_s_max=5.0) as session:  # the others need milliseconds
            walk = walk_bmc(session, SystemClock().now_s() + 60)
            values = values_of(list(show(walk, session.requests)))

    assert values["redfish_fan_rpm{System,Bay1}"] == 9000
    assert values["redfish_power_watts{HGX_GPU_1,total}"] == 612.5  # asked after it
    assert "redfish_power_watts{System,total}" not in values
    assert (values["redfish_complete"], values["redfish_request_failures"]) == (0, 1)


def test_run_that_has_no_time_left_asks_no_more() -> None:
    with Bmc(load("new.json")) as bmc, session_with(bmc) as session:
        with pytest.raises(SourceError, match="no time left"):
            walk_bmc(session, SystemClock().now_s() - 1)

    assert bmc.asked == []


def raw(data: bytes) -> Special:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(data)
        handler.close_connection = True

    return answer


def body(content: bytes, status: int = 200, **headers: str) -> Special:
    return lambda handler: respond(handler, status, content, **headers)


@pytest.mark.parametrize(
    "answer",
    [
        raw(b""),
        raw(b"garbage\r\n\r\n"),
        raw(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n{}"),
        raw(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n{}"),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"),
        raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        body(b"not json"),
        body(b"[]"),
        body(b'{"a": NaN}'),
        body(b"[" * 500_000),
        body(b'{"PowerWatts":' * 70_000),
        body(b'"' + b"x" * (BODY_BYTES_MAX + 10) + b'"'),
        body(b"\xff\xfe{}"),
        body(b"{}", 500),
        body(b"{}", 403),
        body(b"{}", 302, Location="http://192.0.2.1/steal"),
    ],
)
def test_broken_resource_takes_no_other_with_it(answer: Special, tmp_path: Path) -> None:
    with Bmc(load("new.json")) as bmc:
        bmc.pages[f"{NODE}/EnvironmentMetrics"] = answer
        values = collect(bmc, tmp_path)

    assert values["redfish_fan_rpm{System,Bay1}"] == 9000
    assert values["redfish_power_watts{HGX_GPU_1,total}"] == 612.5
    assert values["redfish_request_failures"] == 1


def test_endless_answer_is_cut_off(tmp_path: Path) -> None:
    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        while not bmc.released.is_set():
            handler.wfile.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")

    with Bmc(load("new.json")) as bmc:
        bmc.pages[f"{NODE}/EnvironmentMetrics"] = endless
        values = collect(bmc, tmp_path)

    assert values["redfish_request_failures"] == 1
    assert values["redfish_power_watts{HGX_GPU_1,total}"] == 612.5


def test_links_to_other_hosts_and_in_circles_are_not_followed(tmp_path: Path) -> None:
    pages = load("new.json")
    pages[f"{NODE}/ThermalSubsystem/Fans"]["Members"] += [
        {"@odata.id": link}
        for link in (
            "http://192.0.2.1/redfish/v1/Fans/1",
            "//192.0.2.1/x",
            "/redfish/v1/../../etc/passwd",
            "/redfish/v1/Fans\r\nX-Evil: 1",
            "/redfish/v1/" + "x" * 1000,
            f"{NODE}/ThermalSubsystem/Fans",
            f"{NODE}/ThermalSubsystem/Fans/Bay1",
        )
    ] + [{"@odata.id": 7}, {"@odata.id": None}, "no object"]

    with Bmc(pages) as bmc:
        values = collect(bmc, tmp_path)

    assert all(path.startswith("/redfish/v1/") and ".." not in path for path in bmc.asked)
    assert len(bmc.asked) == len(set(bmc.asked))
    assert values["redfish_request_failures"] == 0


def test_bmc_with_endless_chassis_is_asked_a_bounded_number_of_times(tmp_path: Path) -> None:
    many = [f"{CHASSIS}/{number}" for number in range(250)]
    pages: dict[str, Any] = {
        "/redfish/v1/": {"Chassis": {"@odata.id": CHASSIS}},
        CHASSIS: {"Members": [{"@odata.id": path} for path in many]},
    }
    for path in many:
        links = {name: {"@odata.id": f"{path}/{name}"} for name in ("Thermal", "Power")}
        pages[path] = {"Id": path[-3:], "Status": {"Health": "OK"}, **links}
        pages[f"{path}/Thermal"] = pages[f"{path}/Power"] = {}

    with Bmc(pages) as bmc:
        values = collect(bmc, tmp_path)

    assert values["redfish_complete"] == 0
    assert len(bmc.asked) <= REQUESTS_MAX


def test_bmc_that_closes_every_connection_is_read_all_the_same(tmp_path: Path) -> None:
    pages = load("old.json")

    def closing(page: Any) -> Special:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            respond(handler, 200, json.dumps(page).encode())
            handler.close_connection = True  # without saying so

        return answer

    with Bmc({path: closing(page) for path, page in pages.items()}) as bmc:
        values = collect(bmc, tmp_path)

    assert values["redfish_fan_rpm{1,FAN1}"] == 9600
    assert values["redfish_request_failures"] == 0


def test_refused_user_is_not_tried_again_at_once(tmp_path: Path) -> None:
    clock = FakeClock()
    with Bmc(load("old.json")) as bmc:
        settings = settings_for(bmc, tmp_path)
        Path(settings.credentials_file or "").write_text('user = "monitor"\npassword = "old"\n')
        collector = RedfishCollector(settings, clock)
        with pytest.raises(SourceError, match="rejects the user"):
            list(collector.collect())
        with pytest.raises(SourceError, match="left alone"):
            list(collector.collect())
        tries = len(bmc.asked)
        Path(settings.credentials_file or "").write_text('user = "monitor"\npassword = "s3cret"\n')
        clock.time_s += REFUSED_S
        values = values_of(list(collector.collect()))

    assert tries == 1  # BMCs lock an account after a few
    assert values["redfish_fan_rpm{1,FAN1}"] == 9600


def test_bmc_that_is_off_is_broken_and_none_configured_is_absent(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        bmc = Bmc({})
        bmc.server.server_close()
        with pytest.raises(SourceError):
            collect(bmc, tmp_path)
    with pytest.raises(NoSourceError):
        list(RedfishCollector(RedfishSettings(), SystemClock()).collect())


def test_bmc_without_any_value_is_broken(tmp_path: Path) -> None:
    pages = {"/redfish/v1/": {"Chassis": {"@odata.id": CHASSIS}}, CHASSIS: {"Members": []}}

    with Bmc(pages) as bmc, pytest.raises(SourceError, match="no value"):
        collect(bmc, tmp_path)
    with Bmc({"/redfish/v1/": {}}) as bmc, pytest.raises(SourceError, match="no chassis"):
        collect(bmc, tmp_path)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


def test_certificate_is_checked_unless_the_configuration_says_otherwise(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    with Bmc(load("old.json"), context) as bmc:

        def read(**more: Any) -> dict[str, float]:
            settings = settings_for(bmc, tmp_path, "https", **more)
            return values_of(list(RedfishCollector(settings, SystemClock()).collect()))

        with pytest.raises(SourceError, match="CERTIFICATE_VERIFY_FAILED"):
            read()
        assert bmc.asked == []  # and the password was not sent
        assert read(ca_file=str(cert))["redfish_fan_rpm{1,FAN1}"] == 9600
        assert read(verify=False)["redfish_fan_rpm{1,FAN1}"] == 9600


def test_handshake_that_never_ends_is_bounded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = parse_url(f"https://127.0.0.1:{silent.getsockname()[1]}")
        credentials, clock = Credentials("monitor", "s3cret"), SystemClock()
        session = RedfishSession(address, credentials, make_context(None, True), clock, 0.3)
        with pytest.raises(SourceError):  # by the bound of a request: that of the walk is far away
            session.get("/redfish/v1/", clock.now_s() + 100 * DEADLINE_S)
        session.close()


@pytest.mark.parametrize(
    "url",
    [
        "bmc",
        "ftp://bmc",
        "https://",
        "https://user:pw@bmc",
        "https://bmc/redfish/v1/Chassis",
        "https://bmc?x=1",
        "https://bmc:port",
        "http://10.0.0.1",
        "http://bmc",
    ],
)
def test_url_that_is_wrong_or_sends_the_password_in_the_clear_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(None, RedfishSettings(url=url, credentials_file="/etc/x"))

    assert "pw" not in str(refused.value)


def test_credentials_that_others_may_read_or_that_are_wrong_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bmc.toml"
    path.write_text('user = "monitor"\npassword = "s3cret"\n')
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="other users may read"):
        read_credentials(path)

    path.chmod(0o600)
    assert read_credentials(path) == Credentials("monitor", "s3cret")
    for content in ('user = "a"\n', "s3cret", 'user = "a:b"\npassword = "s3cret"', "\xff"):
        path.write_text(content)
        with pytest.raises(ConfigError) as refused:
            read_credentials(path)
        assert "s3cret" not in str(refused.value)
    with pytest.raises(ConfigError, match="cannot read"):
        read_credentials(tmp_path / "none.toml")


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="credentials_file"):
        check(None, RedfishSettings(url="https://bmc"))
    with pytest.raises(ConfigError, match="no url"):
        check(None, RedfishSettings(verify=False))
    with pytest.raises(ConfigError, match="absolute"):
        check("helper.sock", RedfishSettings())
    check("/run/helper.sock", RedfishSettings(url="https://bmc:8443/", credentials_file="/etc/x"))


KEYS = st.sampled_from(
    [
        *("Id", "Name", "Status", "State", "Health", "Reading", "Members", "@odata.id"),
        *("Temperatures", "ReadingCelsius", "Fans", "PowerSupplies", "PowerControl"),
        *("SpeedPercent", "SpeedRPM", "TemperatureReadingsCelsius", "DeviceName"),
        *("TemperatureSummaryCelsius", "Intake", "DetectorState", "LeakDetectorGroups"),
        *("ReadingType", "Thresholds", "UpperCritical", "UpperCaution"),
        *("Detectors", "FlowLitersPerMinute", "UpperThresholdCritical", "DataSourceUri"),
    ]
)
PAGES = st.dictionaries(
    KEYS,
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=9)
        | st.sampled_from(["OK", "Absent", "/redfish/v1/Chassis", "Temperature", "Rotational"]),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
        max_leaves=20,
    ),
)


@PATIENT
@given(PAGES)
def test_any_page_gives_finite_values_with_names(page: dict[str, Any]) -> None:
    items = [
        *forms.parse_thermal(page),
        *forms.parse_power(page),
        *forms.parse_thermal_metrics(page),
        *forms.parse_fan(page),
        *forms.parse_supply(page),
        *forms.parse_supply_metrics(page, "PSU"),
        *forms.parse_environment(page),
        *forms.parse_coolant_connector(page),
        *forms.parse_pump(page),
        *forms.parse_leak_detector(page),
        *forms.parse_leak_groups(page),
        *forms.parse_sensor(page),
    ]

    for item in items:
        assert item.sensor
        assert item.sensor.isprintable()
        assert not isinstance(item, forms.BmcReading) or abs(item.value) < 1e19
    assert all(path.startswith("/redfish/v1") for path in forms.members(page))

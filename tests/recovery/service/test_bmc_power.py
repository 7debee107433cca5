"""What counts as proof that a node has no power, read from real HTTP servers that act as BMCs."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from rankmend.clock import SystemClock
from rankmend.errors import ConfigError
from recovery.journal.cluster_records import PowerOffAsked
from recovery.service.bmc.bmc_power import THREADS, BmcPower, ServicePowerSwitch
from recovery.service.bmc.bmc_readings import REFUSED_S, BmcReadings
from recovery.service.bmc.bmcs import BmcDirectory
from recovery.service.controller_config import BmcRule, Config, check
from recovery.service.daemon import read
from recovery.service.http import authority
from recovery.service.http.request_errors import FullError
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.power_bmc import (
    PASSWORD,
    RESET,
    SYSTEM,
    PowerBmc,
    respond,
    samples,
    write_credentials,
)
from tests.support.service import make_folder

pytestmark = [pytest.mark.process, pytest.mark.safety]


def rule_of(bmc: PowerBmc, folder: Path, **changes: object) -> BmcRule:
    file = write_credentials(folder)
    settings = {"match": "n*", "url": bmc.url, "credentials_file": str(file), "timeout_s": 10.0}
    return BmcRule(**(settings | changes))


@contextmanager
def power_of(*rules: BmcRule, readings: BmcReadings | None = None) -> Iterator[BmcPower]:
    readings = readings or BmcReadings()
    power = BmcPower(BmcDirectory(rules), SystemClock(), readings, pause_s=0.0)
    try:
        yield power
    finally:
        power.close()


def stages(told: dict[tuple[str, ...], float]) -> dict[str, float]:
    return {key[1]: value for key, value in told.items() if key[0] == "power_offs_total"}


def outcomes(caplog: pytest.LogCaptureFixture, node: str = "n1") -> list[str]:
    """Return what the readings of a node's BMC came to; that of another may be logged at any moment."""
    told = [record for record in caplog.records if hasattr(record, "power_state")]
    return [record.power_state for record in told if record.node == node]  # type: ignore[attr-defined]


def wait_outcome(
    power: BmcPower, caplog: pytest.LogCaptureFixture, node: str = "n1", silence: object = 1
) -> str:
    """Ask until a reading is over, and return what came of it."""
    caplog.set_level("INFO")
    before = len(outcomes(caplog, node))

    def is_over() -> bool:
        assert not power.is_off(node, silence)
        return len(outcomes(caplog, node)) > before

    eventually(is_over, "a reading")
    return outcomes(caplog, node)[-1]


def test_off_read_twice_is_proof_and_the_password_is_in_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with PowerBmc("Off") as bmc, power_of(rule_of(bmc, tmp_path)) as power:
        eventually(lambda: power.is_off("n1", 1), "the proof")

        assert bmc.readings == 2
        eventually(lambda: outcomes(caplog) == ["Off, then Off"], "the reading is logged")
        assert PASSWORD not in caplog.text


@pytest.mark.parametrize(
    "states", [["On"], ["PoweringOff"], ["Paused"], ["Off", "On"], ["Off", "PoweringOn"]]
)
def test_any_other_state_proves_nothing(
    states: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with PowerBmc("On") as bmc, power_of(rule_of(bmc, tmp_path)) as power:
        bmc.states = list(states)

        assert wait_outcome(power, caplog) == ", then ".join(states)


def redirect(handler: object) -> None:
    respond(handler, 302, {}, Location=f"http://127.0.0.1:1{SYSTEM}")


def garbage(handler: object) -> None:
    respond(handler, 200, b"<html>Off</html>")


def no_state(handler: object) -> None:
    respond(handler, 200, {"PowerState": ["Off"]})


def too_long(handler: object) -> None:
    respond(handler, 200, {"PowerState": "Off", "more": "x" * (2 << 20)})


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (redirect, "HTTP 302"),
        (garbage, "not JSON"),
        (no_state, "PowerState is ['Off']"),
        (too_long, "more than"),
    ],
)
def test_a_bmc_that_redirects_or_answers_garbage_proves_nothing(
    answer: Callable[[object], None],
    outcome: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with PowerBmc(answer=answer) as bmc, power_of(rule_of(bmc, tmp_path, system="1")) as power:
        assert outcome in wait_outcome(power, caplog)


def test_a_bmc_that_hangs_holds_up_no_other_and_one_that_is_not_there_proves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gone = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with PowerBmc() as hangs, PowerBmc("Off") as off:
        hangs.answer = lambda _handler: hangs.released.wait(DEADLINE_S)
        rules = (
            rule_of(hangs, tmp_path, match="n1", timeout_s=2.0),
            rule_of(off, tmp_path, match="n2"),
            rule_of(off, tmp_path, match="n3", url=gone),
        )
        with power_of(*rules) as power:
            assert not power.is_off("n1", 1)
            eventually(lambda: power.is_off("n2", 1), "the proof of the other")
            assert "takes more than" in wait_outcome(power, caplog, "n1")
            assert "refused" in wait_outcome(power, caplog, "n3")


def test_a_certificate_that_nobody_vouches_for_proves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca = (tmp_path / "ca.crt", tmp_path / "ca.key")
    server = (tmp_path / "bmc.crt", tmp_path / "bmc.key")
    authority.make_authority(*ca, "bmc")
    authority.make_server(ca, *server, ["localhost"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*server)
    with PowerBmc("Off", context) as bmc:
        with power_of(rule_of(bmc, tmp_path)) as power:
            assert "CERTIFICATE_VERIFY_FAILED" in wait_outcome(power, caplog)
        assert bmc.asked == []  # the password was not sent

        with power_of(rule_of(bmc, tmp_path, ca_file=str(ca[0]))) as power:
            eventually(lambda: power.is_off("n1", 1), "the proof")


class LaterClock(SystemClock):
    """A clock that can be put forward."""

    ahead_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.ahead_s


def test_a_password_that_is_refused_is_not_tried_again_soon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = LaterClock()
    with PowerBmc("Off") as bmc, PowerBmc("Off") as other:
        (tmp_path / "other").mkdir()
        rules = (rule_of(bmc, tmp_path, match="n1"), rule_of(other, tmp_path / "other"))
        power = BmcPower(BmcDirectory(rules), clock, BmcReadings(), pause_s=0.0)
        write_credentials(tmp_path, "wrong")
        assert "rejects the user" in wait_outcome(power, caplog)
        assert "wrong" not in caplog.text

        clock.ahead_s = REFUSED_S - 60.0
        assert not power.is_off("n1", 2)  # a new silence changes nothing about the password
        eventually(lambda: power.is_off("n2", 1), "the proof of the other")
        assert len(bmc.asked) == 1
        write_credentials(tmp_path)  # the right ones are tried at once
        eventually(lambda: power.is_off("n1", 2), "the proof")
        power.close()


def test_what_was_read_in_one_silence_proves_nothing_in_another(tmp_path: Path) -> None:
    with PowerBmc("Off") as bmc, power_of(rule_of(bmc, tmp_path)) as power:
        eventually(lambda: power.is_off("n1", 1), "the proof")
        bmc.power = "On"

        assert not power.is_off("n1", 2)
        assert not power.is_off("n1", 1)


def test_a_bmc_is_asked_once_to_force_the_power_off_and_then_proves_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    readings = BmcReadings()
    with PowerBmc("On") as bmc, power_of(rule_of(bmc, tmp_path), readings=readings) as power:
        assert not power.is_on("n1")  # nothing was read yet
        wait_outcome(power, caplog)
        assert power.is_on("n1")
        assert samples(readings)["bmc_power_state_id", "n1"] == 1

        power.switch_off("n1", lambda: True)

        eventually(lambda: power.is_off("n1", 1), "the proof")
        told = samples(readings)
        assert told["bmc_power_state_id", "n1"] == 0
        assert stages(told) == {"asked": 1, "done": 1, "refused": 0, "failed": 0, "withdrawn": 0}
        assert bmc.resets == [{"ResetType": "ForceOff"}]
        assert not power.is_off("n1", 2)
        assert not power.is_on("n1")


def test_a_bmc_that_refuses_to_switch_off_is_asked_no_second_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(handler: BaseHTTPRequestHandler) -> None:
        respond(handler, 403, {})

    readings = BmcReadings()
    with PowerBmc(answer=refuse) as bmc:
        rule = rule_of(bmc, tmp_path, system="1")
        with power_of(rule, readings=readings) as power:
            power.switch_off("n1", lambda: True)
            eventually(lambda: stages(samples(readings))["refused"] == 1, "the refusal")

        assert "cannot switch a lost node off" in caplog.text
        assert bmc.asked == [f"POST {RESET}"]
        assert stages(samples(readings)) == {
            "asked": 1,
            "done": 0,
            "refused": 1,
            "failed": 0,
            "withdrawn": 0,
        }


def test_a_request_to_switch_off_that_gets_no_answer_is_counted_as_failed(tmp_path: Path) -> None:
    readings = BmcReadings()
    with PowerBmc(answer=lambda handler: handler.connection.close()) as bmc:
        with power_of(rule_of(bmc, tmp_path, system="1"), readings=readings) as power:
            power.switch_off("n1", lambda: True)

            eventually(lambda: stages(samples(readings))["failed"] == 1, "the failure")

        assert bmc.asked == [f"POST {RESET}"]


@pytest.mark.parametrize("heard", [True, None])
def test_a_node_that_is_heard_again_before_its_turn_is_not_switched_off(
    tmp_path: Path, heard: bool | None
) -> None:
    def is_lost() -> bool:
        if heard is None:
            raise FullError("the deciding thread does not run")
        return not heard

    readings = BmcReadings()
    with PowerBmc("On") as bmc, power_of(rule_of(bmc, tmp_path), readings=readings) as power:
        power.switch_off("n1", is_lost)

        eventually(lambda: stages(samples(readings))["withdrawn"] == 1, "the withdrawal")
        assert stages(samples(readings))["asked"] == 0
        assert bmc.asked == []


def test_no_node_is_switched_off_with_too_little_left_of_the_lease(tmp_path: Path) -> None:
    readings = BmcReadings()
    with PowerBmc("On") as bmc:
        directory = BmcDirectory((rule_of(bmc, tmp_path),))
        power = BmcPower(directory, SystemClock(), readings, left_s=lambda: 1.9)
        try:
            power.switch_off("n1", lambda: True)

            eventually(lambda: stages(samples(readings))["withdrawn"] == 1, "the withdrawal")
        finally:
            power.close()
        assert bmc.asked == []


def readers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("bmc")]


def test_bmcs_that_hang_hold_up_no_power_off(tmp_path: Path) -> None:
    (tmp_path / "hanging").mkdir()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        hanging.released.wait()
        respond(handler, 200, {"PowerState": "On"})

    with PowerBmc(answer=answer) as hanging, PowerBmc() as bmc:
        slow = rule_of(hanging, tmp_path / "hanging", timeout_s=300.0)
        with power_of(rule_of(bmc, tmp_path, match="n1"), slow) as power:
            for number in range(THREADS + 1):
                power.is_off(f"n{number + 2}", 1)
            eventually(lambda: len(hanging.asked) == THREADS, "all readers are busy")

            power.switch_off("n1", lambda: True)

            eventually(lambda: bmc.resets, "the request")
        hanging.released.set()
        eventually(lambda: not readers(), "the end of the readers")


def test_power_off_without_any_bmc_is_refused_at_the_start(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "ctl")
    policy = tmp_path / "policy.toml"
    policy.write_text("[policy]\npower_off_to_fence = true\n")
    text = path.read_text()
    path.write_text(f'policy_file = "{policy}"\n{text}')

    with pytest.raises(ConfigError, match=r"power_off_to_fence is true, but .* names no BMC"):
        read(path)


def test_a_nodes_name_never_chooses_the_domain_of_its_bmc(tmp_path: Path) -> None:
    file = str(write_credentials(tmp_path))
    rule = BmcRule(match="*", url="https://bmc-{node}", credentials_file=file)

    directory = BmcDirectory([rule])

    found = directory.find("n1")
    assert found is not None
    assert found.address.host == "bmc-n1"
    for name in ("n1.attacker.example", "n1:1", "n1/x", "a@b", "", "-"):
        assert directory.find(name) is None


def test_the_first_rule_that_matches_counts_whether_it_names_a_node_or_a_pattern(
    tmp_path: Path,
) -> None:
    file = str(write_credentials(tmp_path))
    rules = [
        BmcRule(match=match, url=f"https://bmc-{number}", credentials_file=file)
        for number, match in enumerate(["a1", "b*", "b1", "a*", "a1", "c[12]", "d1"])
    ]

    directory = BmcDirectory(rules)

    found = {
        node: None if (bmc := directory.find(node)) is None else bmc.address.host
        for node in ("a1", "a2", "b1", "c2", "c3", "d1")
    }
    assert found == {
        "a1": "bmc-0", "a2": "bmc-3", "b1": "bmc-1", "c2": "bmc-5", "c3": None, "d1": "bmc-6",
    }  # fmt: skip
    assert directory.named == ("a1", "b1", "d1")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"check_s": 29.0, "url": "https://b"}, "check_s is 29: give 30 or more, or 0"),
        ({"url": "http://10.0.0.1"}, "clear text"),
        ({"url": "https://u:pw@bmc"}, "contains a user"),
        ({"url": "bmc"}, "not https"),
    ],
)
def test_urls_that_are_wrong_or_unsafe_are_refused_by_name(
    changes: dict[str, str], message: str
) -> None:
    rule = BmcRule(**({"match": "gpu-*", "url": "x", "credentials_file": "/x"} | changes))
    config = Config(state_dir="/var/lib/x", bmcs=(rule,))

    with pytest.raises(
        ConfigError, match=rf"\[\[bmcs\]\] number 1 \(gpu-\*\): .*{message}"
    ) as told:
        check(config)
    assert "pw" not in str(told.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "other users may read"),
        ('ca_file = "/none.pem"', "/none.pem"),
        ("timeout_s = 60", "timeout_s"),
        ('system = "../x"', "system"),
        ("verify = false", "verify"),
    ],
)
def test_a_configuration_that_can_not_work_is_refused_at_the_start(
    line: str, message: str, tmp_path: Path
) -> None:
    path = make_folder(tmp_path / "ctl")
    file = write_credentials(tmp_path)
    file.chmod(0o600 if line else 0o640)
    text = f'[[bmcs]]\nmatch = "n*"\nurl = "https://bmc"\ncredentials_file = "{file}"\n{line}\n'
    path.write_text(path.read_text() + text)

    with pytest.raises(ConfigError, match=message):
        read(path)


class Desk:
    """Allows every power-off, and notes it."""

    def __init__(self) -> None:
        self.allowed: list[PowerOffAsked] = []

    def allow_power_off(self, asked: PowerOffAsked) -> bool:
        self.allowed.append(asked)
        return True


def test_a_node_is_switched_off_only_if_its_bmc_says_on_and_no_job_hears_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked, heard, desk = PowerOffAsked("n1", "job", "job-1"), {"n1"}, Desk()
    with PowerBmc("On") as bmc, power_of(rule_of(bmc, tmp_path)) as power:
        switch = ServicePowerSwitch(power, desk, heard.__contains__, heard.__contains__)

        assert not switch.allow_off(asked)  # its BMC was not read
        wait_outcome(power, caplog)
        assert not switch.allow_off(asked)  # another job hears it
        assert desk.allowed == []  # so that no budget is spent
        heard.clear()
        assert switch.allow_off(asked)
        assert desk.allowed == [asked]

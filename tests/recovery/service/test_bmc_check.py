"""The slow look at all BMCs: what becomes a metric, how often it asks, and whom it leaves alone."""

import socket
import ssl
import threading
from collections.abc import Callable, Collection, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import msgspec
import pytest
import urllib3

from rankmend.clock import SystemClock
from recovery.service.bmc.bmc_power import BmcPower
from recovery.service.bmc.bmc_readings import (
    AGAIN_S_MAX,
    CHECKS_AT_ONCE,
    FIRST_S_MAX,
    REFRESH_S,
    REFUSED_S,
    BmcCheck,
    BmcReadings,
)
from recovery.service.bmc.bmcs import BmcDirectory
from recovery.service.controller_config import BmcRule, Config, Discovery
from recovery.service.http import authority
from recovery.service.http.request_errors import FullError
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.power_bmc import PASSWORD, PowerBmc, respond, samples, write_credentials
from tests.support.service import make_folder, running

pytestmark = pytest.mark.process

CHECK_S = 300.0


class SetClock(SystemClock):
    """Stands still until it is put forward."""

    def __init__(self) -> None:
        self.time_s = 1000.0

    def now_s(self) -> float:
        return self.time_s

    def unix_s(self) -> float:
        return 1_800_000_000.0 + self.time_s


class Bench:
    """A check whose clock and nodes the test sets, and whose threads do not run."""

    def __init__(self, *rules: BmcRule, nodes: Collection[str] = ("n1",)) -> None:
        self.clock = SetClock()
        self.nodes: Collection[str] | Exception = nodes
        self.readings = BmcReadings()
        self.share = 0.0  # of each range from which a pause is drawn
        directory = BmcDirectory(rules)
        self.check = BmcCheck(directory, self.readings, self.clock, self._known, self._uniform)
        self.power = BmcPower(directory, self.clock, self.readings, pause_s=0.0)

    def _known(self) -> Collection[str]:
        if isinstance(self.nodes, Exception):
            raise self.nodes
        return self.nodes

    def _uniform(self, low: float, high: float) -> float:
        return low + self.share * (high - low)

    def read(self, after_s: float = 0.0) -> dict[tuple[str, ...], float]:
        """Return the metrics after a look so much later."""
        self.clock.time_s += after_s
        while self.check.read_next():
            pass
        told = samples(self.readings)
        return {key: value for key, value in told.items() if key[0] != "power_offs_total"}


def rule_of(bmc: PowerBmc, folder: Path, **changes: object) -> BmcRule:
    file = write_credentials(folder)
    settings = {"match": "n*", "url": bmc.url, "credentials_file": str(file), "timeout_s": 10.0}
    return BmcRule(**(settings | changes))


@pytest.mark.parametrize(
    ("power", "number"),
    [("Off", 0), ("On", 1), ("PoweringOn", 2), ("PoweringOff", 3), ("Paused", 4)],
)
def test_each_power_state_has_its_number_and_its_time(
    power: str, number: int, tmp_path: Path
) -> None:
    with PowerBmc(power) as bmc:
        bench = Bench(rule_of(bmc, tmp_path), nodes=["n1", "without-bmc"])

        assert bench.read() == {
            ("bmc_power_state_id", "n1"): number,
            ("bmc_read_timestamp_seconds", "n1"): 1_800_001_000.0,
            ("bmc_success", "n1"): 1.0,
        }


def no_json(handler: BaseHTTPRequestHandler) -> None:
    respond(handler, 200, b"<html>On</html>")


def unknown_state(handler: BaseHTTPRequestHandler) -> None:
    respond(handler, 200, {"PowerState": "Sleeping"})


def forbidden(handler: BaseHTTPRequestHandler) -> None:
    respond(handler, 403, {})


def rejected(handler: BaseHTTPRequestHandler) -> None:
    respond(handler, 401, {})


def cut_off(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (no_json, "answer"),
        (unknown_state, "answer"),
        (forbidden, "status"),
        (rejected, "refused"),
        (cut_off, "unreachable"),
    ],
)
def test_failures_are_counted_by_kind_and_the_last_state_keeps_its_time(
    answer: Callable[[BaseHTTPRequestHandler], None], kind: str, tmp_path: Path
) -> None:
    with PowerBmc("On") as bmc:
        bench = Bench(rule_of(bmc, tmp_path, system="1"))
        bench.read()
        bmc.answer = answer
        bench.read(2 * CHECK_S)
        told = bench.read(2 * REFUSED_S)

    assert told == {
        ("bmc_power_state_id", "n1"): 1.0,
        ("bmc_read_timestamp_seconds", "n1"): 1_800_001_000.0,
        ("bmc_success", "n1"): 0.0,
        ("bmc_failures_total", "n1", kind): 2.0,
    }


def test_a_bmc_that_hangs_or_is_not_there_or_whose_certificate_is_not_ours_is_told_apart(
    tmp_path: Path,
) -> None:
    ca, server = (
        (tmp_path / "ca.crt", tmp_path / "ca.key"),
        (tmp_path / "b.crt", tmp_path / "b.key"),
    )
    authority.make_authority(*ca, "bmc")
    authority.make_server(ca, *server, ["localhost"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*server)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gone = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with PowerBmc() as hangs, PowerBmc("On", context) as foreign:
        hangs.answer = lambda _handler: hangs.released.wait(DEADLINE_S)
        bench = Bench(
            rule_of(hangs, tmp_path, match="n1", timeout_s=0.5),
            rule_of(foreign, tmp_path, match="n2"),
            rule_of(hangs, tmp_path, match="n3", url=gone),
        )

        told = bench.read()

        assert foreign.asked == []  # the password was not sent
    assert {key[1:] for key in told if key[0] == "bmc_failures_total"} == {
        ("n1", "timeout"),
        ("n2", "tls"),
        ("n3", "unreachable"),
    }
    assert not [key for key in told if key[0] == "bmc_power_state_id"], "nothing was ever read"


def test_a_credentials_file_that_is_gone_is_a_failure_of_ours_and_asks_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with PowerBmc("On") as bmc:
        bench = Bench(rule_of(bmc, tmp_path))
        (tmp_path / "bmc-credentials.toml").unlink()

        told = bench.read()
        bench.read(2 * CHECK_S)

        assert told["bmc_failures_total", "n1", "credentials"] == 1.0
        assert bmc.asked == []
        assert caplog.text.count("cannot read a BMC") == 1  # said once
        assert PASSWORD not in caplog.text


def test_a_bmc_is_read_once_in_an_interval_give_or_take_a_tenth(tmp_path: Path) -> None:
    with PowerBmc("On") as bmc:
        bench = Bench(rule_of(bmc, tmp_path))
        bench.share = 1.0
        counts = []
        for after_s in (0.0, FIRST_S_MAX, CHECK_S * 1.1 - 1.0, 1.0, CHECK_S):
            bench.read(after_s)
            counts.append(bmc.readings)
            bench.share = 1.0 if len(counts) < 4 else 0.0

        assert counts == [0, 1, 1, 2, 2]
        bench.read(CHECK_S * 0.1)
        assert bmc.readings == 3


def test_the_interval_is_the_rules_and_zero_is_never(tmp_path: Path) -> None:
    with PowerBmc("On") as slow, PowerBmc("On") as never:
        bench = Bench(
            rule_of(slow, tmp_path, match="n1", check_s=3600.0),
            rule_of(never, tmp_path, match="n2", check_s=0.0),
        )
        for _round in range(4):
            bench.read(CHECK_S * 1.2)

        assert (slow.readings, never.readings) == (1, 0)


def test_a_password_that_was_rejected_is_not_tried_again_soon_even_for_a_lost_node(
    tmp_path: Path,
) -> None:
    with PowerBmc("Off") as bmc:
        bench = Bench(rule_of(bmc, tmp_path, check_s=60.0))
        write_credentials(tmp_path, "wrong")
        bench.read()

        bench.read(REFUSED_S - 1.0)
        assert not bench.power.is_off("n1", 1)
        assert len(bmc.asked) == 1
        bench.read(60.0)
        assert len(bmc.asked) == 2

        write_credentials(tmp_path)  # the right ones are tried at once
        eventually(lambda: bench.power.is_off("n1", 1), "the proof")
        assert samples(bench.readings)["bmc_success", "n1"] == 1.0
    bench.power.close()


def test_a_rejected_password_is_remembered_beyond_the_nodes_job(tmp_path: Path) -> None:
    with PowerBmc("On") as bmc:
        bench = Bench(rule_of(bmc, tmp_path, check_s=60.0))
        write_credentials(tmp_path, "wrong")
        bench.read(FIRST_S_MAX)
        bench.read(FIRST_S_MAX)
        assert len(bmc.asked) == 1

        bench.nodes = []
        assert bench.read(FIRST_S_MAX) == {}
        bench.nodes = ["n1"]
        for _round in range(4):
            bench.read(FIRST_S_MAX)

        assert len(bmc.asked) == 1


def test_a_node_that_is_not_checked_raises_no_alert_after_its_one_failed_reading(
    tmp_path: Path,
) -> None:
    with PowerBmc("On") as bmc:
        bench = Bench(rule_of(bmc, tmp_path, check_s=0.0))
        bench.read()
        write_credentials(tmp_path, "wrong")

        assert not bench.power.is_off("n1", 1)  # it is silent: read once

        failed = ("bmc_failures_total", "n1", "refused")
        eventually(lambda: failed in samples(bench.readings), "the failed reading")
        assert ("bmc_success", "n1") not in bench.read(FIRST_S_MAX)
    bench.power.close()


def test_a_failed_reading_is_repeated_soon_however_rare_the_check_is(tmp_path: Path) -> None:
    with PowerBmc("On") as bmc:
        bench = Bench(rule_of(bmc, tmp_path, check_s=86_400.0))
        write_credentials(tmp_path, "wrong")
        bench.read()
        assert bench.read(FIRST_S_MAX)["bmc_success", "n1"] == 0.0

        write_credentials(tmp_path)

        assert bench.read(AGAIN_S_MAX)["bmc_success", "n1"] == 1.0
        readings = bmc.readings
        bench.read(10 * AGAIN_S_MAX)
        assert bmc.readings == readings


def test_a_reading_of_the_check_is_no_proof_and_no_reason_to_switch_off(tmp_path: Path) -> None:
    with PowerBmc("On") as bmc:
        bench = Bench(rule_of(bmc, tmp_path))
        bench.read()
        assert not bench.power.is_on("n1")

        bmc.power = "Off"
        bench.read(2 * CHECK_S)
        assert (bmc.readings, bench.power.is_off("n1", 1)) == (2, False)
    bench.power.close()


def test_nodes_come_and_go_and_those_with_a_rule_of_their_own_stay(tmp_path: Path) -> None:
    with PowerBmc("On") as bmc:
        bench = Bench(rule_of(bmc, tmp_path, match="own"), rule_of(bmc, tmp_path), nodes=["n1"])
        assert {key[1] for key in bench.read()} == {"own", "n1"}

        bench.nodes = ["n2"]
        assert {key[1] for key in bench.read(REFRESH_S)} == {"own", "n2"}

        bench.nodes = FullError("the deciding thread is busy")
        assert {key[1] for key in bench.read(2 * CHECK_S)} == {"own", "n2"}
        assert bmc.readings == 5  # all but n1 once more, though nobody says which nodes there are


def test_threads_read_no_more_than_a_few_at_a_time(tmp_path: Path) -> None:
    lock, count, most = threading.Lock(), 0, 0

    def answer(handler: BaseHTTPRequestHandler) -> None:
        nonlocal count, most
        with lock:
            count += 1
            most = max(most, count)
        bmc.released.wait(DEADLINE_S)
        with lock:
            count -= 1
        respond(handler, 200, {"PowerState": "On"})

    nodes = [f"n{number}" for number in range(3 * CHECKS_AT_ONCE)]
    with PowerBmc(answer=answer) as bmc:
        bench = Bench(rule_of(bmc, tmp_path, system="1", timeout_s=10.0), nodes=nodes)
        try:
            bench.check.start()
            eventually(lambda: count == CHECKS_AT_ONCE, "all threads read")
            bmc.released.set()
            eventually(
                lambda: (
                    sum(key[0] == "bmc_success" for key in samples(bench.readings)) == len(nodes)
                ),
                "all nodes are read",
            )
        finally:
            bench.check.stop()

    assert most == CHECKS_AT_ONCE


@pytest.fixture
def bmc() -> Iterator[PowerBmc]:
    with PowerBmc("On") as made:
        yield made


def test_a_controller_shows_the_power_of_the_nodes_it_knows(tmp_path: Path, bmc: PowerBmc) -> None:
    """Forty nodes, so that one of them is due soon."""
    make_folder(tmp_path / "ctl")
    nodes = tuple(f"n{number}" for number in range(40))

    def change(config: Config) -> Config:
        rule = rule_of(bmc, tmp_path, check_s=30.0)
        return msgspec.structs.replace(config, bmcs=(rule,), discovery=Discovery(nodes=nodes))

    with running(tmp_path / "ctl", change) as up:
        eventually(lambda: bmc.readings > 0, "a BMC is read")
        eventually(lambda: len(samples(up.service.measures.bmcs)) > 4, "its state is kept")
        token = (tmp_path / "ctl" / "admin.token").read_text().strip()
        pool = urllib3.PoolManager(ca_certs=str(up.ca), retries=False)
        page = pool.request(
            "GET", f"{up.url}/metrics", headers={"Authorization": f"Bearer {token}"}
        )
        pool.clear()

    assert page.status == 200
    text = page.data.decode()
    assert 'rankmend_controller_bmc_power_state_id{node="n' in text
    assert 'rankmend_controller_power_offs_total{stage="asked"} 0.0' in text

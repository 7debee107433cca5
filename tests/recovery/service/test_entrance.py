"""Who gets a connection, and how much one sender may send: one address or node takes nothing from the others."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import urllib3
from hypothesis import given
from hypothesis import strategies as st

from rankmend.errors import ConfigError
from recovery.controller.cluster.alert_shares import NODE_ALERTS_MAX
from recovery.service import controller_config
from recovery.service.http import authority
from recovery.service.http.call import NODE_BODY_BYTES_MAX
from recovery.service.http.guard import Entrance, Quota
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.service import Running, make_folder, running

pytestmark = pytest.mark.process


def quota(**limits: object) -> Quota:
    return Quota(controller_config.Limits(**limits))  # type: ignore[arg-type]


def enter(quota: Quota, address: str, count: int) -> int:
    """Return how many of so many connections were let in."""
    entered = 0
    for _ in range(count):
        if quota.refusal(address) is None:
            quota.enter(address)
            entered += 1
    return entered


@pytest.mark.parametrize(
    ("connections", "per_address", "expected"), [(40, 1000, 30), (3, 1000, 3), (1, 1000, 1), (25_000, 1000, 1000), (40, 5, 5)]
)  # fmt: skip
def test_one_address_leaves_room_for_others(
    connections: int, per_address: int, expected: int
) -> None:
    limited = quota(connections=connections, connections_per_address=per_address)

    assert enter(limited, "10.0.0.1", connections + 10) == expected
    assert enter(limited, "10.0.0.2", 1) == (1 if connections > expected else 0)


def test_address_of_many_machines_may_have_all_connections() -> None:
    limited = quota(connections=40, shared_addresses=("10.1.0.0/16", "2001:db8::/32"))

    assert enter(limited, "10.1.2.3", 60) == 40
    limited = quota(connections=40, shared_addresses=("2001:db8::/32",))
    assert enter(limited, "2001:db8::7", 60) == 40


def test_refusal_says_which_limit() -> None:
    limited = quota(connections=4)
    enter(limited, "10.0.0.1", 3)

    assert "3 connections are open; the limit per address is 3" in str(limited.refusal("10.0.0.1"))
    enter(limited, "10.0.0.2", 1)
    assert "limits.connections is 4" in str(limited.refusal("10.0.0.3"))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=200))
def test_count_is_that_of_what_is_open(steps: list[tuple[str, bool]]) -> None:
    limited, held = quota(connections=12, connections_per_address=5), {"a": 0, "b": 0, "c": 0}
    for address, comes in steps:
        if comes and limited.refusal(address) is None:
            limited.enter(address)
            held[address] += 1
        elif not comes and held[address]:
            limited.leave(address)
            held[address] -= 1

        assert len(limited) == sum(held.values()) <= 12
        assert max(held.values()) <= 5
    assert set(limited._held) == {address for address, count in held.items() if count}


def test_network_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "controller.toml"
    path.write_text('state_dir = "/x"\n[limits]\nshared_addresses = ["10.1.0.0/33"]\n')

    with pytest.raises(ConfigError, match=r"shared_addresses: '10\.1\.0\.0/33' is not an address"):
        controller_config.load(path)


# A service.


def forty(one: controller_config.Config) -> controller_config.Config:
    limits = controller_config.Limits(connections=40, alerts=1e5)
    return msgspec.structs.replace(one, limits=limits)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("entrance") / "files"
    make_folder(folder)
    with running(folder, forty) as up:
        yield up


def ask_from(up: Running, address: str) -> int:
    """Return the status of a request that comes from another address of this machine."""
    context = ssl.create_default_context(cafile=str(up.ca))
    with (
        socket.create_connection(
            ("127.0.0.1", up.port), timeout=DEADLINE_S, source_address=(address, 0)
        ) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return int(connection.recv(64).split(b" ")[1])


def test_address_that_opens_all_it_can_shuts_nobody_else_out_and_handshakes_count(
    up: Running,
) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(60):  # none of them shakes hands
            held = socket.create_connection(("127.0.0.1", up.port), timeout=DEADLINE_S)
            stack.enter_context(held)
        eventually(lambda: up.service._count_connections()[0] == 30, "three quarters are taken")

        assert ask_from(up, "127.0.0.2") == 200
        with pytest.raises(OSError):
            ask_from(up, "127.0.0.1")
    eventually(lambda: up.service._count_connections()[0] == 0, "all of them are counted out")
    assert ask_from(up, "127.0.0.1") == 200


def test_handshake_that_fails_is_counted_out(up: Running) -> None:
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", up.port), timeout=DEADLINE_S) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(OSError):
                connection.recv(64)

    eventually(lambda: up.service._count_connections()[0] == 0, "no connection is left")


@pytest.fixture
def post(up: Running) -> Iterator[Callable[[list[object]], tuple[int, dict[str, object]]]]:
    """Return what posts alerts by the certificate of node gpu4."""
    files = (up.folder / "gpu4.crt", up.folder / "gpu4.key")
    if not files[0].exists():
        authority.make_node((up.ca, up.folder / "ca.key"), *files, "gpu4")
    pool = urllib3.PoolManager(
        ca_certs=str(up.ca), retries=False, cert_file=str(files[0]), key_file=str(files[1])
    )

    def act(alerts: list[object]) -> tuple[int, dict[str, object]]:
        body = json.dumps(alerts).encode()
        answer = pool.request("POST", f"{up.url}/api/v2/alerts", body=body, timeout=DEADLINE_S)
        return answer.status, json.loads(answer.data)

    yield act
    pool.clear()


def test_node_that_floods_is_bounded_named_and_counted(
    up: Running, post: Callable[[list[object]], tuple[int, dict[str, object]]]
) -> None:
    admin = up.client("admin")
    admin.post_alerts([{"labels": {"alertname": "RankmendX", "node": "gpu1"}}])

    taken, refused = 0, 0
    for message in range(15):
        status, said = post(
            [
                {"labels": {"alertname": "RankmendX", "node": "gpu4", "device": f"{message}-{n}"}}
                for n in range(100)
            ]
        )
        assert status == 200
        taken, refused = (
            taken + int(str(said["alerts"])),
            refused + int(str(said.get("refused", 0))),
        )

    assert (taken, refused) == (NODE_ALERTS_MAX, 500)
    book = up.service.worker.desk.alerts.active
    assert sum(one.target.node == "gpu1" for one in book) == 1
    (note,) = [one for one in admin.cluster().notes if "too many alerts" in one]
    assert note.startswith("node:gpu4 sends too many alerts")
    token = (up.folder / "admin.token").read_text().strip()
    with urllib3.PoolManager(ca_certs=str(up.ca)) as pool:
        page = pool.request(
            "GET", f"{up.url}/metrics", headers={"Authorization": f"Bearer {token}"}
        )
    assert b"rankmend_controller_alerts_refused_total 500.0" in page.data


def test_message_of_a_node_is_no_larger_than_an_agents(
    up: Running, post: Callable[[list[object]], tuple[int, dict[str, object]]]
) -> None:
    labels = {"alertname": "RankmendX", "node": "gpu4", "device": "d" * 16_000}

    status, said = 0, {}
    for _try in range(20):  # the service may close before the rest of the body has left here
        with contextlib.suppress(urllib3.exceptions.HTTPError):
            status, said = post([{"labels": labels}] * (NODE_BODY_BYTES_MAX // 16_000 + 1))
            break

    assert status == 413
    assert str(NODE_BODY_BYTES_MAX) in str(said["error"])


def test_of_two_that_bound_one_port_the_second_to_listen_names_it() -> None:
    def bind(port: int) -> socket.socket:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
        return bound

    async def enter(listener: socket.socket) -> None:
        Entrance(listener, None, controller_config.Limits(), None, 10)  # type: ignore[arg-type]

    with bind(0) as first:
        port = first.getsockname()[1]
        with bind(port) as second:
            first.listen()

            with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: Address already in use"):
                asyncio.run(enter(second))

"""Ports are chosen by taking them."""

import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmend.errors import ConfigError, LaunchError
from recovery.launcher.rendezvous.ports import (
    PORT_MAX,
    PortRange,
    default_range,
    read_default_range,
    reserve,
    reserve_exactly,
)
from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.process

LOOPBACK = "127.0.0.1"


def free_range(size: int) -> PortRange:
    """Return neighbouring ports, all of which are free now.

    Nobody else draws from where they lie: below the ports of `tests.support.free_port`, of launchers and of the kernel.
    Connections of another test may still be closing on a port: that one is not free.
    """
    for first in range(7_000, 8_000, size):
        with ExitStack() as held:
            try:
                for port in range(first, first + size):
                    held.enter_context(socket.socket()).bind((LOOPBACK, port))
            except OSError:
                continue
            return PortRange(first, first + size - 1)
    raise AssertionError(f"no {size} free ports in a row")


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [("20000-29999", 20_000, 29_999), ("29500", 29_500, 29_500), (" 1-65535 ", 1, 65_535)],
)
def test_range_is_read_as_written(text: str, first: int, last: int) -> None:
    assert PortRange.parse(text) == PortRange(first, last)


@pytest.mark.parametrize(
    "text",
    ["", "-", "1-", "-1", "0-5", "5-4", "1-65536", "a-b", "1-2-3", "²-3", "1" * 5000, "1_0-20"],
)
def test_range_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="port range"):
        PortRange.parse(text)


@given(st.text())
def test_any_text_is_a_range_or_a_config_error(text: str) -> None:
    try:
        ports = PortRange.parse(text)
    except ConfigError:
        return
    assert 1 <= ports.first <= ports.last <= PORT_MAX


@given(st.integers(1, PORT_MAX), st.integers(0, 50), st.integers(0, PORT_MAX))
def test_search_tries_every_port_once_and_begins_where_it_is_told(
    first: int, more: int, start: int
) -> None:
    ports = PortRange(first, min(first + more, PORT_MAX))

    tried = list(ports.cycle_from(start))

    assert sorted(tried) == list(range(ports.first, ports.last + 1))
    if ports.first <= start <= ports.last:
        assert tried[0] == start


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("32768\t60999\n", "20000-29999"),
        ("30000 65535", "20000-29999"),
        ("29999 65535", "19999-29998"),  # one below: the usual range would overlap
        ("10000 65535", "1024-9999"),
        ("2024 65535", "1024-2023"),
        ("2023 50000", "50001-60000"),
        ("1024 65535", "20000-29999"),  # no room at all
        ("rubbish", "20000-29999"),
        ("", "20000-29999"),
    ],
)
def test_default_range_stays_out_of_the_kernels_where_there_is_room(
    kernel: str, expected: str
) -> None:
    assert str(default_range(kernel)) == expected


def test_machine_without_the_setting_gets_the_usual_range(tmp_path: Path) -> None:
    assert read_default_range(tmp_path / "none") == PortRange(20_000, 29_999)


@pytest.mark.parametrize("address", [LOOPBACK, "localhost", ""])
def test_reserved_port_refuses_connections_until_it_listens(address: str) -> None:
    reserved = reserve(free_range(4), address)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address or LOOPBACK, reserved.port), timeout=DEADLINE_S)

    reserved.listen()
    with socket.create_connection((address or LOOPBACK, reserved.port), timeout=DEADLINE_S):
        pass

    reserved.release()


def test_busy_port_is_passed_over() -> None:
    ports = free_range(3)
    first = reserve(ports, LOOPBACK, first=ports.first)

    second = reserve(ports, LOOPBACK, first=ports.first)

    assert (first.port, second.port) == (ports.first, ports.first + 1)
    first.release()
    second.release()


@pytest.mark.parametrize("address", [LOOPBACK, ""])
def test_reserved_port_is_held_against_those_who_would_share_it(address: str) -> None:
    reserved = reserve(free_range(4), address)

    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, option, 1)
            with pytest.raises(OSError, match="in use"):
                other.bind((LOOPBACK, reserved.port))

    reserved.release()


def test_port_of_another_address_family_is_busy_all_the_same() -> None:
    ports = free_range(1)
    everywhere = reserve(ports, "")

    with pytest.raises(LaunchError):
        reserve(ports, LOOPBACK)

    everywhere.release()


def test_wholly_busy_range_is_named() -> None:
    ports = free_range(3)
    held = [reserve(ports, LOOPBACK) for _port in range(ports.size)]

    with pytest.raises(LaunchError, match=f"no free port in {ports} on {LOOPBACK}"):
        reserve(ports, LOOPBACK)

    for reserved in held:
        reserved.release()


def test_busy_port_that_the_user_insists_on_is_named_with_its_holder() -> None:
    port = free_range(1).first
    held = reserve_exactly(port, LOOPBACK)

    with pytest.raises(LaunchError) as kept:
        reserve_exactly(port, LOOPBACK)
    held.listen()
    with pytest.raises(LaunchError) as caught:
        reserve_exactly(port, LOOPBACK)

    assert "such as another `rankmend run`" in str(kept.value)
    assert f"port {port} on {LOOPBACK} is busy" in str(caught.value)
    assert f"held by process {os.getpid()} " in str(caught.value)
    held.release()


@pytest.mark.safety
def test_released_port_is_free_again_though_its_connections_still_close() -> None:
    port = free_range(1).first
    held = reserve_exactly(port, LOOPBACK)
    held.listen()
    client = socket.create_connection((LOOPBACK, port), timeout=DEADLINE_S)
    accepted, _peer = held.holder.accept()
    accepted.close()  # our side closes first: it is the one that stays in TIME_WAIT
    client.close()
    held.release()

    reserve_exactly(port, LOOPBACK).release()


@pytest.mark.parametrize("address", ["192.0.2.77", "no.such.host.invalid"])
def test_address_that_is_not_this_machines_is_named(address: str) -> None:
    with pytest.raises(LaunchError, match=address):
        reserve(PortRange(20_000, 20_010), address)

"""The sockets of agent and controller: every address of a host, also where it has only one kind of them."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankmend.listening import bind, plain_address

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
# In a network of its own, whose loopback has addresses of one kind: listens on ":0" and is called by that kind.
CALLED = """
import socket, sys
from rankmend.listening import bind
address = sys.argv[1]
with bind("", 0) as listener:
    listener.listen()
    with socket.create_connection((address, listener.getsockname()[1]), 60):
        connection, peer = listener.accept()
        connection.close()
print("called")
"""
IPV6_ONLY = "ip link set lo up; ip -4 addr flush dev lo"
IPV4_ONLY = "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; ip link set lo up"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a network of its own")
@pytest.mark.parametrize(("network", "address"), [(IPV6_ONLY, "::1"), (IPV4_ONLY, "127.0.0.1")])
def test_every_address_is_listened_on_where_a_host_has_one_kind_only(
    network: str, address: str
) -> None:
    script = f'{network} && exec {sys.executable} -c "$CALLED" {address}'
    done = subprocess.run(
        ["unshare", "--net", "sh", "-ec", script],
        env={**os.environ, "CALLED": CALLED},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == "called\n", done.stderr


@pytest.mark.parametrize("host", ["", "127.0.0.1", "localhost"])
def test_port_that_is_taken_is_an_error(host: str) -> None:
    with bind(host, 0) as first:
        first.listen()
        with pytest.raises(OSError) as refused, bind(host, first.getsockname()[1]) as second:
            second.listen()

    assert refused.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize(
    ("told", "address"),
    [("::ffff:10.0.0.7", "10.0.0.7"), ("10.0.0.7", "10.0.0.7"), ("fd00::7", "fd00::7")],
)
def test_peer_with_an_ipv4_address_is_named_by_it(told: str, address: str) -> None:
    assert plain_address(told) == address

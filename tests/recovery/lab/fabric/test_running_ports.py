"""What a node tells of its ports while programs send: pauses come from the tools that are there."""

import os
from pathlib import Path

import pytest

from recovery.lab.fabric.running_flows import look
from tests.support.nics import write
from tests.support.rdma_tree import NO_GID, add_port

pytestmark = pytest.mark.process

# Counts its calls: 100 pauses more at each.
ETHTOOL = """#!/bin/sh
echo "$2" >> {folder}/calls
count=$(wc -l < {folder}/calls)
echo "NIC statistics:"
echo "     rx_prio3_pause: $((count * 100))"
echo "     tx_prio3_pause: 5"
"""
SS = "#!/bin/sh\n"


def tools(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    for name, text in scripts.items():
        path = folder / name
        path.write_text(text.format(folder=folder))
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_pauses_that_came_while_it_watched_are_told_with_their_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools(tmp_path, monkeypatch, ss=SS, ethtool=ETHTOOL)

    _flows, _pairs, (port,) = look(0.05, [], ["lo"])

    (pause,) = port.pauses
    assert (pause.priority, pause.is_received) == ("3", True), "none were sent meanwhile"
    assert 0 < pause.frames_per_s <= 100 / 0.05


def test_counters_of_a_cards_second_port_are_those_of_the_interface_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools(tmp_path, monkeypatch, ss=SS, ethtool="#!/bin/sh\nexit 94\n", rdma="#!/bin/sh\necho []\n")  # fmt: skip
    first = add_port(tmp_path, "mlx4_0", gids=[("eth0", "RoCE v2", NO_GID)])
    second = add_port(tmp_path, "mlx4_0", gids=[("eth1", "RoCE v2", NO_GID)], port=2)
    write(second / "counters/port_xmit_data", "7")
    write(first / "hw_counters/np_cnp_sent", "7")

    _flows, _pairs, ports = look(0.05, [], ["eth0", "eth1", "eth2"], tmp_path)

    assert [one.rdma_bytes_per_s for one in ports] == [None, 0.0, None]


def test_a_driver_that_counts_nothing_hides_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools(tmp_path, monkeypatch, ss=SS, ethtool="#!/bin/sh\necho no stats available >&2; exit 94\n")

    _flows, _pairs, (port,) = look(0.05, [], ["lo"])

    assert (port.interface, port.pauses) == ("lo", ())
    assert port.sent_bytes_per_s is not None

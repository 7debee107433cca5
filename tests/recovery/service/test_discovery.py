"""What /v1/sd/agents tells Prometheus: addresses and labels of the agents."""

from pathlib import Path

import msgspec
import pytest

from rankmend.errors import ConfigError
from recovery.service.controller_config import Discovery, load
from recovery.service.discovery import targets
from tests.support.service import make_folder, running
from tests.support.service_bench import ask

pytestmark = pytest.mark.process


def told(node: str, **changes: object) -> tuple[str, dict[str, str]]:
    (one,) = targets({node: ["j"]}, msgspec.convert(changes, Discovery))
    (address,) = one.targets
    return address, one.labels


def test_agent_is_at_its_nodes_name_and_the_common_port() -> None:
    labels = {"node": "gpu-1", "__meta_rankmend_job_ids": "j"}

    assert told("gpu-1") == ("gpu-1:9476", labels)
    assert told("gpu-1", domain="c.example", agent_port=9000)[0] == "gpu-1.c.example:9000"


def test_pattern_gives_another_address_and_a_name_counts_before_it() -> None:
    addresses = {"gpu-*": "{node}-mgmt.example:9470", "gpu-2": "10.0.0.2:9471", "*": "x:1"}

    assert told("gpu-1", addresses=addresses)[0] == "gpu-1-mgmt.example:9470"
    assert told("gpu-2", addresses=addresses)[0] == "10.0.0.2:9471"
    assert told("cpu-1", addresses=addresses)[0] == "x:1"


@pytest.mark.parametrize("node", ["evil.example#", "a.b", "a/b", "a b", ""])
def test_name_that_a_launcher_chose_never_picks_the_host_behind_a_pattern(node: str) -> None:
    discovery = Discovery(addresses={"*": "{node}.mgmt.example:9476"})

    assert targets({node: []}, discovery) == []


def test_labels_are_those_of_the_configuration() -> None:
    racks = {"gpu-0*": "r0", "gpu-1*": "r1", "gpu-17": "r7"}

    assert told("gpu-11", racks=racks, cluster="a")[1] == {
        "node": "gpu-11",
        "rack": "r1",
        "cluster": "a",
        "__meta_rankmend_job_ids": "j",
    }
    assert told("gpu-17", racks=racks)[1]["rack"] == "r7"
    assert "rack" not in told("cpu-1", racks=racks)[1]


@pytest.mark.parametrize("address", ["host", "host:", ":9476", "host:99999", "a:b:1", "host:0"])
def test_address_without_host_or_port_stops_the_controller_at_its_start(
    tmp_path: Path, address: str
) -> None:
    path = tmp_path / "controller.toml"
    path.write_text(f'state_dir = "/x"\n[discovery.addresses]\n"gpu-*" = "{address}"\n')

    with pytest.raises(ConfigError, match=r"discovery.addresses.*gpu-\*.*is not HOST:PORT"):
        load(path)


def test_node_of_a_watched_job_is_listed_while_its_agent_reports_it(tmp_path: Path) -> None:
    make_folder(tmp_path / "files")
    job_id = "00000000-0000-4000-8000-000000000001"
    rank = {"rank": 0, "world_size": 1, "attempt": 1, "local_rank": 0, "pid": 1,
            "start_ticks": 1, "process_state": "R"}  # fmt: skip
    job = {"job_id": job_id, "name": "theirs", "user": "u", "launcher": "torchrun", "ranks": [rank]}
    with running(tmp_path / "files") as up:
        report = {"version": 1, "node": "w1", "jobs": [job]}
        status, body = ask(up, "POST", "/v1/watched", json=report)
        assert status == 200, body

        _status, body = ask(up, "GET", "/v1/sd/agents")

    assert msgspec.json.decode(body) == [
        {
            "targets": ["w1:9476"],
            "labels": {"node": "w1", "__meta_rankmend_job_ids": job_id},
        }
    ]

"""From a driver (a stub library under the unchanged pynvml) to findings, end to end."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent import AgentProcess, Page, running_agent
from tests.support.eventually import eventually
from tests.support.nvml_stub.node import Node

pytestmark = pytest.mark.process

CONFIG = """
interval_s = 0.2
disabled = ["kernel_log"]  # this machine's own
[gpu]
expected_count = 2
"""
UUID = "GPU-00000000-0000-0000-0000-000000000000"


def finder(agent: AgentProcess, port: int) -> Callable[[], dict[str, dict[str, Any]]]:
    def find() -> dict[str, dict[str, Any]]:
        page = json.loads(agent.get(port, "/api/v1/findings")[1])
        return {found["id"]: found for found in page["findings"]}

    return find


def test_lost_gpu_is_a_critical_finding_that_asks_for_a_reboot(tmp_path: Path, node: Node) -> None:
    (tmp_path / "agent.toml").write_text(CONFIG)
    arguments = ("--config", str(tmp_path / "agent.toml"), "--socket", str(tmp_path / "a.sock"))
    with running_agent(*arguments) as (agent, port):
        find, page = finder(agent, port), Page(agent, port)
        page.wait(2, "gpu_answering")
        assert not [found for found in find() if found.startswith("gpu_lost")]

        node.stub.lose(0)
        node.save()
        found = eventually(lambda: find().get(f"gpu_lost/{UUID}"), "the finding")
        node.stub.report(1, 95)
        node.save()
        other = "xid_95/GPU-00000000-0000-0000-0000-000000000001"
        eventually(lambda: other in find(), "the XID that the driver reports")

    assert (found["severity"], found["action"], found["is_latched"]) == ("critical", "reboot", True)
    assert found["evidence"][0].startswith("rankmend_gpu_lost{")


def test_xid_of_the_driver_is_a_finding_at_once_and_does_not_wait_for_the_next_look(
    tmp_path: Path, node: Node
) -> None:
    (tmp_path / "agent.toml").write_text(
        CONFIG + "[intervals_s]\nfindings = 3600\ngpu_state = 3600\n"
    )
    arguments = ("--config", str(tmp_path / "agent.toml"), "--socket", str(tmp_path / "a.sock"))
    with running_agent(*arguments) as (agent, port):
        find = finder(agent, port)
        Page(agent, port).wait(45, "gpu_temperature_celsius", gpu="1")

        node.stub.report(1, 95)
        node.save()

        xid = "xid_95/GPU-00000000-0000-0000-0000-000000000001"
        eventually(lambda: xid in find(), "the XID, an hour before the next look")

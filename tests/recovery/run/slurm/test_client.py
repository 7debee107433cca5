"""Slurm's commands are asked with a limit, and what they say about a failure is passed on."""

import pytest

from rankmend.errors import ConfigError, LaunchError
from recovery.run.slurm import address
from recovery.run.slurm.client import ask_slurm


def test_answer_is_what_the_command_prints() -> None:
    assert ask_slurm("printf", "NodeAddr=10.0.0.7 ") == "NodeAddr=10.0.0.7 "


def test_command_that_hangs_is_given_up() -> None:
    with pytest.raises(LaunchError, match=r"sleep 60: no answer from Slurm within 0 s"):
        ask_slurm("sleep", "60", timeout_s=0.1)


def test_failure_says_what_the_command_said() -> None:
    with pytest.raises(LaunchError, match="No such file"):
        ask_slurm("ls", "/no/such/folder")
    with pytest.raises(LaunchError, match="no-such-program"):
        ask_slurm("no-such-program")


def test_name_that_resolves_is_used_as_it_is() -> None:
    assert address.node_address("localhost") == "localhost"


def test_address_is_read_out_of_what_slurm_says_of_a_node() -> None:
    told = "NodeName=node1 Arch=x86_64 NodeAddr=10.0.0.7 NodeHostName=vm Port=1"

    assert address.parse_address("node1", told) == "10.0.0.7"
    with pytest.raises(ConfigError, match=r"node1.*--rdzv-endpoint"):
        address.parse_address("node1", "NodeName=node1 State=IDLE")

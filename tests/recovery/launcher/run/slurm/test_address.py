"""Addresses of a job's nodes: by name, else as Slurm tells them."""

import pytest

from rankmend.errors import ConfigError
from recovery.launcher.run.slurm import taking

pytestmark = pytest.mark.process


def test_name_that_resolves_is_used_as_it_is() -> None:
    assert taking.node_address("localhost") == "localhost"


def test_address_is_read_out_of_what_slurm_says_of_a_node() -> None:
    told = "NodeName=node1 Arch=x86_64 NodeAddr=10.0.0.7 NodeHostName=vm Port=1"

    assert taking.parse_address("node1", told) == "10.0.0.7"
    with pytest.raises(ConfigError, match=r"node1.*--rdzv-endpoint"):
        taking.parse_address("node1", "NodeName=node1 State=IDLE")

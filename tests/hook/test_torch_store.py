"""Rank 0 joins the launcher's store without an attempt to host it."""

import socket
import sys
from pathlib import Path

import pytest

from rankmend.hook import layout
from tests.support.hook import Rank, each_python

pytestmark = pytest.mark.process
RENDEZVOUS = """\
def _create_c10d_store(hostname, port, rank, world_size, timeout, use_libuv=True):
    return "hosts" if rank == 0 else "joins"
"""
ASK = """
import torch.distributed.rendezvous as rendezvous
print(rendezvous._create_c10d_store({host!r}, {port}, {rank}, 2, None))
"""


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    rank = Rank(tmp_path, environment={layout.ENV_AUTO: "1"})
    package = rank.folder / "lib" / "torch" / "distributed"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("")
    (package / "rendezvous.py").write_text(RENDEZVOUS)
    rank.environment["PYTHONPATH"] = f"{rank.site}:{package.parent.parent}"
    rank.environment["TORCHELASTIC_USE_AGENT_STORE"] = "true"
    rank.environment["MASTER_ADDR"] = "127.0.0.1"
    return rank


def ask(rank: Rank, port: int, python: str = sys.executable, number: int = 0) -> str:
    return rank.run(python, ASK.format(host="127.0.0.1", port=port, rank=number)).strip()


@each_python
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_rank_0_joins_the_launchers_store_where_it_listens(
    rank: Rank, python: str, address: str
) -> None:
    with socket.create_server((address, 0)) as listener:
        port = listener.getsockname()[1]
        rank.environment["MASTER_PORT"] = str(port)

        assert ask(rank, port, python) == "joins"


def test_rank_0_hosts_where_the_launchers_store_is_gone(rank: Rank) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    rank.environment["MASTER_PORT"] = str(port)

    assert ask(rank, port) == "hosts"


@pytest.mark.parametrize(("changed", "value"), [("MASTER_PORT", "1"), ("MASTER_ADDR", "node7")])
def test_rank_0_hosts_at_an_address_of_the_scripts_own(
    rank: Rank, changed: str, value: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        rank.environment["MASTER_PORT"] = str(port)
        rank.environment[changed] = value

        assert ask(rank, port) == "hosts"


@pytest.mark.parametrize("agent_store", ["False", "True"])
def test_nothing_is_touched_where_the_launcher_says_otherwise(rank: Rank, agent_store: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        rank.environment["MASTER_PORT"] = str(port)
        rank.environment["TORCHELASTIC_USE_AGENT_STORE"] = agent_store

        assert ask(rank, port) == "hosts"

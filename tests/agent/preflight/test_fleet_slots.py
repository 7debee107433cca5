"""So many nodes are checked at once, and a node that died in its check holds no slot for ever."""

import os
from pathlib import Path

import pytest

from agent.preflight.fleet_slots import SPARE_S, give_slot, start_delay_s, take_slot
from agent.preflight.policy import PreflightPolicy, read_policy
from rankmend.errors import ConfigError


def test_a_node_too_many_gets_none_until_another_gives_its_back(tmp_path: Path) -> None:
    first, second = take_slot(tmp_path, 2, "a", 60), take_slot(tmp_path, 2, "b", 60)
    assert first is not None
    assert second is not None
    assert take_slot(tmp_path, 2, "c", 60) is None

    give_slot(tmp_path, first, "b")  # not b's
    assert take_slot(tmp_path, 2, "c", 60) is None
    give_slot(tmp_path, first, "a")

    assert take_slot(tmp_path, 2, "c", 60) == first


def test_the_slot_of_a_node_that_is_overdue_is_taken(tmp_path: Path) -> None:
    name = take_slot(tmp_path, 1, "dead", 60)
    assert name is not None
    path = tmp_path / name
    written_s = path.stat().st_mtime
    os.utime(path, (written_s, written_s - 60 - SPARE_S + 20))
    assert take_slot(tmp_path, 1, "b", 60) is None

    os.utime(path, (written_s, written_s - 60 - SPARE_S - 20))

    assert take_slot(tmp_path, 1, "b", 60) == name
    assert [one.name for one in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"bound_s": Infinity}', '{"bound_s": NaN}', '{"bound_s": 1e999}', "[" * 900],
)
def test_a_slot_of_which_nobody_can_say_when_it_ends_holds_no_longer_than_the_spare_time(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "preflight-0.slot"
    path.write_text(content)
    written_s = path.stat().st_mtime
    assert take_slot(tmp_path, 1, "b", 60) is None

    os.utime(path, (written_s, written_s - SPARE_S - 20))

    assert take_slot(tmp_path, 1, "b", 60) == path.name


def test_nodes_begin_at_moments_that_differ_within_the_time() -> None:
    delays = [start_delay_s(f"gpu-{number}", 10.0) for number in range(100)]

    assert all(0 <= one < 10 for one in delays)
    assert len(set(delays)) > 50


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[preflight]\nnodes_at_one = 3\n", "line 2: .*unknown key 'nodes_at_one'"),
        ("[other]\n", "unknown key 'other'"),
        ("[preflight]\nnodes_at_once = 3\n", "needs slots_folder"),
        ("[preflight]\nramp_watts_per_s = -1\n", "ramp_watts_per_s"),
    ],
)
def test_a_mistake_in_the_policy_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "preflight.toml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=message):
        read_policy(path)


def test_a_node_gets_its_share_of_the_shared_storage(tmp_path: Path) -> None:
    path = tmp_path / "preflight.toml"
    path.write_text(
        "[preflight]\nnodes_at_once = 4\nslots_folder = '/s'\nstorage_bytes_per_s = 8e9\n"
    )

    assert read_policy(path).node_storage_bytes_per_s == 2e9
    assert PreflightPolicy().node_storage_bytes_per_s == 0

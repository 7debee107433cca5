"""The log of what rankmend did to a node."""

import json
from pathlib import Path

import pytest

from rankmend import action_log
from rankmend.action_log import append_action
from rankmend.errors import StorageError


def test_each_action_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log" / "actions.jsonl"

    append_action(path, "drain", {"node": "n1"})
    append_action(path, "cleanup", {"job": "7"})

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["action"] for line in lines] == ["drain", "cleanup"]
    assert lines[0]["node"] == "n1"


def test_a_long_log_is_rotated_once(tmp_path: Path) -> None:
    path = tmp_path / "actions.jsonl"
    path.write_text("x" * (action_log.FILE_BYTES_MAX + 1))

    append_action(path, "drain", {})

    assert len(path.read_text().splitlines()) == 1
    assert (tmp_path / "actions.jsonl.1").stat().st_size > action_log.FILE_BYTES_MAX


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "actions.jsonl").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(StorageError, match="cannot write"):
        append_action(tmp_path / "actions.jsonl", "drain", {})

    assert not (tmp_path / "elsewhere").exists()

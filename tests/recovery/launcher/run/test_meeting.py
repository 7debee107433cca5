"""Where launchers meet without a service: the command line, the secret, the note and its claims."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from rankmend.cli import cli
from rankmend.errors import ConfigError, RankmendError, SourceError
from rankmend.node import is_name_given
from recovery.controller.job.membership import Word, judge_gone
from recovery.journal.fold.entry_fold import fold_all
from recovery.journal.job_records import RecordsLost
from recovery.journal.limits import Policy
from recovery.journal.records import Entry
from recovery.launcher.run.meeting import claim_name
from recovery.launcher.run.meeting_site import CLAIMS_KEPT, HostFolder
from recovery.launcher.run.options import (
    Meeting,
    Mode,
    NodeCounts,
    RunOptions,
    choose_mode,
    count_nodes,
    make_policy,
    parse_meeting,
    parse_nodes,
)
from recovery.service.meeting_secret import Identity, new_secret, read_secret
from recovery.service.tokens import Tokens
from tests.support.host_notes import note

pytestmark = pytest.mark.safety


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({}, Mode.STANDALONE),
        ({"nnodes": "1:1", "rdzv_endpoint": "h:1"}, Mode.STANDALONE),
        ({"standalone": True}, Mode.STANDALONE),
        ({"standalone": True, "nnodes": "1:4"}, Mode.STANDALONE),
        ({"nnodes": "2", "rdzv_endpoint": "h:1"}, Mode.MEETING),
        ({"nnodes": "3:4", "controller": "https://a"}, Mode.SERVICE),
        ({"controller": "https://a"}, Mode.SERVICE),
    ],
)
def test_the_command_line_says_who_hosts_the_controller(
    options: dict[str, object], mode: Mode
) -> None:
    assert choose_mode(RunOptions("train.py", **options)) is mode  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"standalone": True, "nnodes": "2"}, "--standalone is for one node"),
        ({"standalone": True, "nnodes": "1:2", "spares": 1}, "with --spares 1"),
        ({"nnodes": "3:4", "spares": 2}, "leaves 2 nodes to train on.*at most 1"),
        ({"nnodes": "3:4", "shrink_multiple": 0}, "--nnodes 4 --spares 1"),
        ({"nnodes": "4", "spares": 1, "shrink_multiple": 1}, "MIN:MAX"),
        ({"nnodes": "1:2", "rdzv_conf": "last_call_timeout=soon"}, "'soon' is not a number"),
        ({"nnodes": "1:2", "rdzv_conf": "last_call_timeout=-1"}, "from 0 to 300"),
        ({"nnodes": "1:2", "rdzv_conf": "last_call_timeout=nan"}, "from 0 to 300"),
        ({"controller": "https://a", "standalone": True}, "mutually exclusive"),
        ({"nnodes": "2", "rdzv_endpoint": "h", "shrink_multiple": 2}, "MIN:MAX"),
        ({"nnodes": "2", "grow_every_s": 60.0}, "give --nnodes MIN:MAX, not 2"),
        ({"nnodes": "1:2", "standalone": True, "grow_every_s": 60.0}, "1:2 with --standalone"),
        ({"nnodes": "1:2", "grow_every_s": 60.0}, "--checkpoint-dir"),
        ({"nnodes": "4:3"}, "MIN <= MAX"),
        ({"nnodes": "two"}, "'two'"),
        ({"nnodes": "0"}, "1 <= MIN"),
        ({"nnodes": "²"}, "'²'"),
    ],
)
def test_what_contradicts_itself_is_refused_by_name(options: dict[str, object], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        choose_mode(RunOptions("train.py", **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({}, NodeCounts(1, 1, 0, 0)),
        ({"nnodes": "4"}, NodeCounts(4, 4, 0, 0)),
        ({"nnodes": "4", "spares": 1}, NodeCounts(3, 4, 1, 0)),
        ({"nnodes": "4:16"}, NodeCounts(4, 16, 0, 1)),
        ({"nnodes": "4:16", "spares": 2}, NodeCounts(4, 16, 2, 1)),
        ({"nnodes": "4:16", "shrink_multiple": 8}, NodeCounts(4, 16, 0, 8)),
        ({"nnodes": "3:4", "spares": 1}, NodeCounts(3, 4, 1, 1)),
        ({"nnodes": "2:2"}, NodeCounts(2, 2, 0, 1)),
    ],
)
def test_only_spares_are_held_back_from_training(
    options: dict[str, object], counts: NodeCounts
) -> None:
    assert count_nodes(RunOptions("train.py", **options)) == counts  # type: ignore[arg-type]


def test_growth_is_off_unless_it_is_asked_for(tmp_path: Path) -> None:
    options = RunOptions("train.py", nnodes="1:2", checkpoint_dir=tmp_path, controller="https://a")
    grows = replace(options, grow_every_s=3600.0)

    assert choose_mode(grows) is Mode.SERVICE
    assert (make_policy(options).grow_every_s, make_policy(grows).grow_every_s) == (0.0, 3600.0)


@pytest.mark.parametrize(
    ("conf", "wait_s"),
    [
        (None, 30.0),
        ("is_host=1", 30.0),
        ("last_call_timeout=1", 1.0),
        ("join_timeout=600, last_call_timeout = 2.5", 2.5),
        ("'last_call_timeout=0'", 0.0),  # as PyTorch's own tests quote it
    ],
)
def test_the_last_call_is_torchruns(conf: str | None, wait_s: float) -> None:
    options = RunOptions("train.py", nnodes="1:2", rdzv_conf=conf)

    assert make_policy(options).join_wait_s == wait_s


@pytest.mark.parametrize("nnodes", ["1", "2", "1:4"])
def test_a_foreign_rendezvous_backend_is_refused_alike_on_any_number_of_nodes(nnodes: str) -> None:
    with pytest.raises(ConfigError, match=r"--rdzv-backend etcd: .* give c10d"):
        choose_mode(RunOptions("train.py", nnodes=nnodes, rdzv_backend="etcd"))
    with pytest.raises(ConfigError, match="--rdzv-backend etcd"):
        choose_mode(RunOptions("train.py", rdzv_backend="etcd", controller="https://a"))


def test_standalone_overrides_a_rendezvous_backend() -> None:
    options = RunOptions("train.py", rdzv_backend="etcd", standalone=True)

    assert choose_mode(options) is Mode.STANDALONE


def test_launchers_on_one_machine_have_names_of_their_own(tmp_path: Path) -> None:
    first, held = claim_name(tmp_path / "names", "node7")
    second, held_second = claim_name(tmp_path / "names", "node7")
    other, held_other = claim_name(tmp_path / "other", "node7")
    assert (first, second, other) == ("node7", "node7-2", "node7")

    os.close(held)
    again, held_again = claim_name(tmp_path / "names", "node7")

    assert again == "node7", "as the launcher that has ended"
    for descriptor in (held_second, held_other, held_again):
        os.close(descriptor)


@pytest.mark.parametrize(
    ("configured", "environment", "is_given"),
    [
        (None, {}, False),
        ("gpu-7", {}, True),
        (None, {"SLURMD_NODENAME": "node1"}, True),
        (None, {"SLURMD_NODENAME": ""}, False),
    ],
)
def test_a_name_that_the_user_or_slurm_gives_gets_no_number(
    configured: str | None, environment: dict[str, str], is_given: bool
) -> None:
    assert is_name_given(configured, environment) is is_given


def test_numbers_of_nodes_are_read_as_torchrun_reads_them() -> None:
    assert parse_nodes("3") == (3, 3)
    assert parse_nodes("3:4") == (3, 4)


@pytest.mark.parametrize(
    ("options", "meeting"),
    [
        ({"rdzv_endpoint": "node1:29500"}, Meeting("node1", 29500, None)),
        ({"rdzv_endpoint": "node1"}, Meeting("node1", 29400, None)),
        ({"rdzv_endpoint": "[fd00::1]:29500"}, Meeting("fd00::1", 29500, None)),
        ({"rdzv_endpoint": "fd00::1"}, Meeting("fd00::1", 29400, None)),
        ({"rdzv_endpoint": "n", "rdzv_conf": "is_host=1,x=2"}, Meeting("n", 29400, True)),
        ({"rdzv_endpoint": "n", "rdzv_conf": "is_host=false"}, Meeting("n", 29400, False)),
        ({"master_addr": "n", "master_port": 7, "node_rank": 0}, Meeting("n", 7, True)),
        ({"master_addr": "n", "master_port": 7, "node_rank": 3}, Meeting("n", 7, False)),
        (
            {"rdzv_backend": "static", "rdzv_endpoint": "n:7", "node_rank": 1},
            Meeting("n", 7, False),
        ),
    ],
)
def test_both_forms_of_torchrun_name_where_nodes_meet(
    options: dict[str, object], meeting: Meeting
) -> None:
    assert parse_meeting(RunOptions("t", nnodes="2", **options)) == meeting  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({}, "--rdzv-endpoint HOST:PORT"),
        ({"rdzv_endpoint": "n:0"}, "n:0"),
        ({"rdzv_endpoint": ":29400"}, "29400"),
        ({"rdzv_endpoint": "n:x"}, "n:x"),
    ],
)
def test_a_meeting_that_nobody_finds_is_refused(options: dict[str, object], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        parse_meeting(RunOptions("t", nnodes="2", **options))  # type: ignore[arg-type]


def test_beyond_this_machine_without_a_secret_the_message_says_what_to_do(tmp_path: Path) -> None:
    argv = [
        "run",
        "--nnodes=2",
        "--rdzv-endpoint=192.0.2.7:29400",
        f"--state-dir={tmp_path}",
        "t.py",
    ]

    ended = CliRunner().invoke(cli, argv)

    assert ended.exit_code == 2
    for part in ("192.0.2.7:29400", "--checkpoint-dir", "--token-file", "openssl rand -hex 32"):
        assert part in ended.output


def test_a_service_needs_a_name_for_the_job(tmp_path: Path) -> None:
    argv = [
        "run",
        "--nnodes=2",
        "--controller=http://127.0.0.1:1",
        f"--state-dir={tmp_path}",
        "t.py",
    ]

    ended = CliRunner().invoke(cli, argv, env={"SLURM_JOB_ID": None})

    assert ended.exit_code == 2
    assert "--job" in ended.output


def test_everything_follows_from_the_secret_and_from_nothing_else() -> None:
    secret = new_secret()
    one, again, other = Identity(secret), Identity(secret), Identity(new_secret())

    assert (one.token, one.fingerprint) == (again.token, again.fingerprint)
    assert one.token != other.token
    assert one.fingerprint != other.fingerprint
    assert secret not in one.token
    from datetime import datetime, timezone

    assert Tokens([one.entry()]).find(one.token, datetime.now(timezone.utc)).name == "job"


def test_a_secret_that_could_be_guessed_or_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("5" * 31)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="31 characters"):
        read_secret(path)

    path.write_text("5" * 32)
    assert read_secret(path) == "5" * 32
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="0640"):
        read_secret(path)


def test_a_note_comes_back_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    folder = HostFolder(tmp_path / ".rankmend")
    assert folder.read() is None

    folder.write(note(beat=3))

    assert folder.read() == note(beat=3)
    path = tmp_path / ".rankmend" / "host.json"
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="0644"):
        folder.read()


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff", b"[" * 70_000, b'{"key": 1}', b"x" * 70_000])
def test_a_note_that_is_none_is_an_error_and_not_a_host(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "host.json"
    path.write_bytes(body)
    path.chmod(0o600)

    with pytest.raises(SourceError, match=r"host\.json"):
        HostFolder(tmp_path).read()


def test_a_link_in_place_of_the_note_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("{}")
    (tmp_path / "host.json").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(RankmendError):
        HostFolder(tmp_path).read()


def test_old_claims_go_and_the_newest_stays(tmp_path: Path) -> None:
    folder = HostFolder(tmp_path)

    for epoch in range(1, 30):
        assert folder.claim(epoch, "a")

    assert folder.newest_claim() == 29
    assert len(list(tmp_path.glob("host-*"))) == CLAIMS_KEPT


@pytest.mark.parametrize(
    ("has_lease", "late_s", "is_gone"),
    [(True, 27.0, True), (True, 26.9, False), (False, 99.0, False)],
)
def test_the_attempt_of_a_host_that_is_gone_is_proved_gone_by_the_lease_that_it_kept(
    has_lease: bool, late_s: float, is_gone: bool
) -> None:
    record = RecordsLost(0, 9, 3, 0, 0, None, ("a", "b"), has_lease)
    ledger = fold_all([Entry(1, 0.0, 0.0, "boot", record)])
    words = {"b": Word(100.0 + late_s, empty_through=3, empty_at_s=100.0, launcher_at_s=95.0)}

    gone = judge_gone(
        ledger,
        ledger.placement,
        words,
        Policy(),  # 15 s of lease, 10 to kill, 2 of margin
        100.0 + late_s,
        started_at_s=90.0,
        confirmed_at_s={},
    )

    assert gone.is_proved is is_gone

"""A controller with [slurm]: what jobs leave is asked of Slurm, and shown, whether Slurm answers or not."""

import json
import stat
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from prometheus_client import generate_latest

from rankmend.cli import cli
from recovery.schedulers.slurm.limits import SlurmLimits
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest
from recovery.service.roles import Role
from recovery.service.tokens import add_token, make_token
from tests.support.eventually import eventually
from tests.support.service import make_folder, running

pytestmark = pytest.mark.process

# One node whose state and reason are in a file.
NODE = """#!/bin/sh
state="$(dirname "$0")/state"
[ -e "$state" ] || echo "State=IDLE" > "$state"
case "$*" in
  "show node n1 --oneliner") echo "NodeName=n1 CPUAlloc=0 $(cat "$state")" ;;
  *state=drain*) echo "State=IDLE+DRAIN Reason=${4#reason=} [root@1]" > "$state" ;;
  *state=undrain*) echo "State=IDLE" > "$state" ;;
  *) echo "unexpected: $*" >&2; exit 1 ;;
esac
"""
SCONTROL = """#!/bin/sh
case "$*" in
  "show node n1 --oneliner") echo "NodeName=n1 CPUAlloc=0 State=IDLE" ;;
  *) echo "unexpected: $*" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "scontrol").write_text(SCONTROL)
    (folder / "scontrol").chmod(stat.S_IRWXU)
    return folder


def test_a_request_is_dry_until_act_is_set_and_is_shown(tmp_path: Path, programs: Path) -> None:
    make_folder(tmp_path / "c")
    limits = SlurmLimits(enabled=True, folder=str(programs))

    with running(tmp_path / "c", lambda one: msgspec.structs.replace(one, slurm=limits)) as up:
        slurm = up.service.slurm
        assert slurm is not None
        slurm.desk.ask(SchedulerRequest("k", SchedulerAction.DRAIN, ("n1",), reason="slow"))
        eventually(lambda: not slurm.desk.ledger.open, "the request has ended")
        view = up.client("admin").slurm()
        access = ["--controller", up.url, "--ca-file", str(up.ca)]
        words = ["slurm", *access, "--token-file", str(up.folder / "admin.token")]
        told = CliRunner().invoke(cli, words)
        as_json = CliRunner().invoke(cli, [*words, "--json"])

    assert (view.enabled, view.acts) == (True, False)
    (shown,) = view.requests
    assert "dry: drain n1: would drain n1" in told.output
    assert "because: slow" in told.output
    assert json.loads(as_json.stdout)["requests"][0]["outcome"] == "dry"
    assert (shown.outcome, shown.text, shown.reason) == ("dry", "would drain n1", "slow")
    assert view.nodes == []


def test_a_drained_node_is_checked_and_returned_and_its_history_is_shown(
    tmp_path: Path, programs: Path
) -> None:
    make_folder(tmp_path / "c")
    healthy = tmp_path / "healthy"
    (programs / "scontrol").write_text(NODE)
    (programs / "sinfo").write_text("#!/bin/sh\necho n1\n")
    (programs / "sinfo").chmod(stat.S_IRWXU)
    token, entry = make_token("ann", [Role.FLEET_READ], jobs=["ann-*"])
    add_token(tmp_path / "c" / "tokens.toml", entry)
    (tmp_path / "c" / "ann.token").write_text(token)
    (tmp_path / "c" / "ann.token").chmod(0o600)
    look = f"import os, sys; print('looked at', sys.argv[1]); sys.exit(not os.path.exists({str(healthy)!r}))"
    limits = SlurmLimits(
        enabled=True,
        act=True,
        folder=str(programs),
        return_check=(sys.executable, "-c", look, "{node}"),
        return_after_s=0.0,
        return_pause_s=1.0,
    )

    with running(tmp_path / "c", lambda one: msgspec.structs.replace(one, slurm=limits)) as up:
        slurm = up.service.slurm
        assert slurm is not None
        slurm.desk.ask(SchedulerRequest("k", SchedulerAction.DRAIN, ("n1",), reason="slow"))
        desk = slurm.desk
        eventually(lambda: desk.ledger.history("n1").checked is not None, "the check has failed")
        (node,) = up.client("admin").slurm().nodes
        access = ["--controller", up.url, "--ca-file", str(up.ca)]
        status = ["status", "--nodes", *access, "--token-file"]
        shown = CliRunner().invoke(cli, [*status, str(up.folder / "admin.token")])
        as_json = CliRunner().invoke(cli, [*status, str(up.folder / "admin.token"), "--json"])
        of_user = CliRunner().invoke(cli, [*status, str(up.folder / "ann.token"), "--json"])
        page = generate_latest(up.service.measures.registry).decode()
        healthy.touch()
        eventually(lambda: bool(desk.ledger.history("n1").over), "the node is back")
        (back,) = up.client("admin").slurm().nodes

    assert (shown.exit_code, as_json.exit_code) == (0, 0), shown.output + as_json.output
    assert of_user.exit_code == 0, of_user.output
    assert json.loads(of_user.stdout)["slurm_nodes"] == []
    assert "n1: drained in Slurm" in shown.stdout
    assert "drained: slow" in shown.stdout
    assert json.loads(as_json.stdout)["slurm_nodes"][0]["node"] == "n1"
    assert node.is_ours
    assert node.history[-1].text == "return_check failed (exit code 1): looked at n1"
    assert 'rankmend_controller_slurm_node_check_passed{node="n1"} 0.0' in page
    assert (back.is_ours, back.over) == (False, "its check has passed")
    assert [one.kind for one in back.history if one.kind != "checked"] == ["drained", "over"]
    assert "State=IDLE\n" in (programs / "state").read_text()

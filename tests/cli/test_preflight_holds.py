"""The option `--hold` of `rankmend preflight`: out and back, in Slurm by its commands and in a real controller."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.preflight.children import LoadChildren
from agent.preflight.hold_record import read_hold
from agent.preflight.result_file import FlightResult
from detectors.preflight.verdicts import CheckStanding, CheckVerdict, FlightOutcome
from rankmend.cli.preflights.preflight import prolog_code
from rankmend.cli.preflights.preflight_holds import HoldOptions, hold_or_return
from recovery.service.roles import Role
from recovery.service.tokens import add_token, make_token
from tests.support.controllers import Service
from tests.support.eventually import DEADLINE_S
from tests.support.service import make_folder

pytestmark = pytest.mark.process

# Stands for slurmctld: keeps one node's state and reason in files, and prints as scontrol and sinfo of Slurm 22.05 do.
SCONTROL = """#!/bin/sh
cd {folder}
if [ "$1" = show ]; then
  echo "NodeName=gpu-1 State=$(cat state) Partitions=batch Reason=$(cat reason) [root@2026-11-26T10:00:00]"
else
  for word in "$@"; do case "$word" in
    state=drain) echo IDLE+DRAIN >state;;
    state=undrain) echo IDLE >state; : >reason;;
    reason=*) printf '%s' "${{word#reason=}}" >reason;;
  esac; done
fi
"""
SINFO = '#!/bin/sh\ncd {folder}\necho "gpu-1|$(cat state)|$(cat reason)"\n'


def result(standing: CheckStanding) -> FlightResult:
    check = CheckVerdict("cpu_hash_bytes_per_s", "cpu", standing, "300 MB/s")
    outcome = FlightOutcome.FAILED if standing is CheckStanding.FAILED else FlightOutcome.PASSED
    return FlightResult("gpu-1", "quick", outcome, 0.0, 1.0, 60.0, 1, (check,))


FAILED, PASSED = result(CheckStanding.FAILED), result(CheckStanding.PASSED)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("scontrol", SCONTROL), ("sinfo", SINFO)):
        path = tmp_path / name
        path.write_text(text.format(folder=tmp_path))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "state").write_text("IDLE")
    (tmp_path / "reason").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def in_slurm(folder: Path, found: FlightResult, *, acts: bool) -> dict[str, object]:
    options = HoldOptions("slurm", acts, False, 0.1)
    return hold_or_return(options, found, folder / "kept", LoadChildren(), 100)


def test_without_act_slurm_is_told_nothing(slurm: Path) -> None:
    done = in_slurm(slurm, FAILED, acts=False)

    assert (done["move"], (slurm / "state").read_text().strip()) == ("hold", "IDLE")


def test_a_failed_node_is_drained_with_its_reason_and_returned_after_a_pass(slurm: Path) -> None:
    done = in_slurm(slurm, FAILED, acts=True)
    assert done["outcome"] == "drained"
    reason = (slurm / "reason").read_text()
    assert reason == "rankmend: preflight: cpu_hash_bytes_per_s cpu: 300 MB/s"
    assert read_hold(slurm / "kept", "slurm") == reason

    done = in_slurm(slurm, PASSED, acts=True)

    assert done["outcome"] == "returned"
    assert (slurm / "state").read_text().strip() == "IDLE"
    assert read_hold(slurm / "kept", "slurm") is None


def test_a_node_whose_reason_a_person_has_changed_stays_out(slurm: Path) -> None:
    in_slurm(slurm, FAILED, acts=True)
    (slurm / "reason").write_text("fan 3 is loud")

    done = in_slurm(slurm, PASSED, acts=True)

    assert (done["move"], (slurm / "state").read_text().strip()) == ("leave", "IDLE+DRAIN")


def test_a_prolog_keeps_jobs_off_only_where_it_acts_and_no_brake_holds() -> None:
    assert prolog_code(FAILED, {}, acts=True, is_hang_cause=False) == 3
    assert prolog_code(FAILED, {"outcome": "braked"}, acts=True, is_hang_cause=False) == 0
    assert prolog_code(FAILED, {"outcome": "no_answer"}, acts=True, is_hang_cause=False) == 3
    assert prolog_code(FAILED, {}, acts=False, is_hang_cause=False) == 0
    assert prolog_code(PASSED, {}, acts=True, is_hang_cause=False) == 0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    folder = tmp_path / "controller"
    make_folder(folder)
    token, entry = make_token("actor", [Role.FLEET_READ, Role.ACT])
    add_token(folder / "tokens.toml", entry)
    (folder / "actor.token").write_text(token)
    (folder / "actor.token").chmod(0o600)
    running = Service(folder)
    yield running
    running.client.close()
    running.process.terminate()
    running.process.wait(DEADLINE_S)


def test_a_controller_holds_a_failed_node_and_takes_it_back_only_if_it_was_us(
    service: Service, tmp_path: Path
) -> None:
    options = HoldOptions(
        "controller",
        True,
        False,
        0.1,
        service.url,
        service.folder / "actor.token",
        service.folder / "ca.crt",
    )
    state = tmp_path / "kept"

    assert hold_or_return(options, FAILED, state, LoadChildren(), 100)["outcome"] == "held"
    (held,) = service.client.cluster().held
    assert (held.node, held.reason) == ("gpu-1", "preflight: cpu_hash_bytes_per_s cpu: 300 MB/s")
    assert hold_or_return(options, PASSED, state, LoadChildren(), 100)["outcome"] == "returned"
    assert service.client.cluster().held == []
    service.client.drain("gpu-1", "a person's reason", is_expected=True)
    done = hold_or_return(options, PASSED, state, LoadChildren(), 100)
    assert done["move"] == "leave"
    assert json.dumps(done)
    assert len(service.client.cluster().held) == 1

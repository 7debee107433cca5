"""`rankmend doctor` as people and scripts call it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from detectors.doctor.check import HostPart
from detectors.doctor.table import CHECKS
from rankmend.cli.doctor import PARTS
from tests.support.eventually import DEADLINE_S
from tests.support.nics import add_pci

pytestmark = pytest.mark.process
ALL = [check.name for checks in CHECKS.values() for check in checks]
PATIENT = ("--timeout", "60")


def doctor(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RANKMEND_")}
    return subprocess.run(
        [sys.executable, "-m", "rankmend.cli", "doctor", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env={**kept, "COLUMNS": "80", **variables},
    )


def checks_of(done: "subprocess.CompletedProcess[str]") -> dict[str, dict[str, Any]]:
    return {check["check"]: check for check in json.loads(done.stdout)["checks"]}


def make_tree(folder: Path) -> tuple[str, ...]:
    """Make a recorded tree with a GPU and no driver; return the options."""
    (folder / "proc").mkdir()
    add_pci(folder / "sys", "10/10:00.0", "0x030200", "0x10de", 0, "vfio-pci")
    return ("--procfs", str(folder / "proc"), "--sysfs", str(folder / "sys"))


def test_every_part_that_can_be_named_has_checks_and_no_other_has() -> None:
    assert set(PARTS) == {part.value for part in HostPart}
    assert {check.part for checks in CHECKS.values() for check in checks} == set(HostPart)


def test_json_has_every_check_once_and_the_code_of_the_worst() -> None:
    done = doctor("--json", *PATIENT)

    told = json.loads(done.stdout)
    assert [check["check"] for check in told["checks"]] == ALL
    outcomes = {check["outcome"] for check in told["checks"]}
    assert told["exit_code"] == done.returncode
    expected = 2 if "broken" in outcomes else int(bool(outcomes & {"lacking", "unknown"}))
    assert done.returncode == expected
    assert done.stderr == ""


def test_recorded_tree_is_shown_with_the_line_that_fixes_it(tmp_path: Path) -> None:
    done = doctor("gpu", *make_tree(tmp_path), *PATIENT)

    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    assert "lacking gpu NVIDIA driver: 1 GPU, and the kernel module nvidia is not" in text
    assert "lost: training on GPUs" in text
    assert "fix: modprobe nvidia" in text
    assert "1 lacking, 8 not applicable" in text


def test_this_machines_limits_are_not_a_recorded_trees(tmp_path: Path) -> None:
    found = checks_of(doctor("--json", *make_tree(tmp_path), *PATIENT))

    assert found["limits_shm"]["outcome"] == "not_applicable"
    assert found["gpu_driver"]["outcome"] == "lacking"


def test_part_with_nothing_lacking_ends_with_0(tmp_path: Path) -> None:
    done = doctor("rdma", *make_tree(tmp_path), *PATIENT)

    assert (done.returncode, done.stdout.strip()) == (
        0,
        "4 not applicable; --all shows every row",
    )


def test_hang_costs_only_the_checks_that_hang(tmp_path: Path) -> None:
    """A pipe in the place of a file hangs as a dead mount does."""
    pipe = tmp_path / "agent.toml"
    os.mkfifo(pipe)

    done = doctor("agent", "limits", "--json", "--config", str(pipe), "--timeout", "8")

    found = checks_of(done)
    assert found["agent_config"]["outcome"] == "unknown"
    assert "no answer within 8 s" in found["agent_config"]["found"]
    assert found["limits_shm"]["outcome"] != "unknown"
    assert done.returncode >= 1


def test_configuration_is_shown_without_control_characters(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text('"\\u001b]0;owned\\u0007" = 1\n')

    done = doctor("agent", "--config", str(config), *PATIENT)

    assert done.returncode == 2
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("words", [("gpus",), ("--timeout", "0"), ("--loud",)])
def test_wrong_command_line_is_refused(words: tuple[str, ...]) -> None:
    done = doctor(*words)

    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_ordinary_user_gets_every_check_too() -> None:
    # Loaded before: this Python may lie below root's home folder.
    script = (
        "import os, sys, pkgutil, importlib\n"
        "import encodings.ascii, encodings.idna, encodings.latin_1\n"
        "import agent.doctor, recovery.local.doctor, detectors.doctor, detectors.doctor.table\n"
        "import rankmend.cli.doctor, getpass, asyncio, urllib3, tempfile, resource, agent.config\n"
        "for package in (agent.doctor, recovery.local.doctor):\n"
        "    for one in pkgutil.iter_modules(package.__path__):\n"
        "        importlib.import_module(package.__name__ + '.' + one.name)\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); os.chdir('/')\n"
        "rankmend.cli.main(['doctor', '--json', '--timeout', '60'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env={**os.environ, "HOME": "/nonexistent"},
    )

    told = json.loads(done.stdout)
    assert not told["is_root"]
    assert [check["check"] for check in told["checks"]] == ALL
    assert not {one["found"] for one in told["checks"] if "internal error" in one["found"]}


@pytest.mark.parametrize(
    ("module", "package"),
    [("rich", "rich"), ("msgspec", "msgspec"), ("aiohttp", "aiohttp")],
)
def test_package_that_is_missing_is_named_and_stops_nothing_else(module: str, package: str) -> None:
    script = (
        f"import sys; sys.modules[{module!r}] = None\n"  # importing it raises ImportError then
        "from rankmend.cli import main; main(['doctor', 'python', 'limits', '--timeout', '60'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env={**os.environ, "COLUMNS": "200"},
    )

    assert f"-m pip install {package}" in done.stdout, done.stderr
    assert "shared memory: /dev/shm" in done.stdout
    assert (done.returncode >= 1, done.stderr) == (True, "")

"""What each start loads: none loads what only another part of rankmend needs, or what takes long."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.eventually import DEADLINE_S
from tests.support.modules import FILES, ROOT, module_name

pytestmark = pytest.mark.process

# What a command must not load before it does its work: each takes 10 to 100 ms of every start. numpy
# comes with the first steps of a job, urllib3 with the first question to an agent or a controller.
SLOW_TO_LOAD = {
    *("aiohttp", "apscheduler", "asyncio", "cryptography", "importlib.metadata", "matplotlib"),
    *("multiprocessing", "numpy", "prometheus_client", "psutil", "pyarrow", "rich", "sklearn"),
    *("jinja2", "ssl", "torch", "urllib3", "uvloop"),
}
# Not for the agent, which runs on every node: the controller's, and what costs memory.
HEAVY = {"numpy", "pandas", "pydantic", "recovery", "sqlite3", "sklearn", "torch"}
# Each takes 3 to 20 ms, and a machine without jobs has no use for it.
ONLY_FOR_JOBS = {
    *("csv", "dataclasses", "hashlib", "json", "logging", "msgspec", "tempfile", "zoneinfo"),
    *("rankmend.cli.sources.picture", "recovery.journal.folder.job_folder"),
}
AGENT_MODULES_MAX = 20  # of ours and of others that `import agent` may load


def _loaded_by(code: str) -> set[str]:
    """Return the modules that a fresh interpreter has after this code and had not before."""
    script = f"import sys; before = set(sys.modules); {code}\nprint(*set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_import_of_the_agent_is_light() -> None:
    loaded = _loaded_by("import agent")

    assert len(loaded) <= AGENT_MODULES_MAX
    assert {name.partition(".")[0] for name in loaded} & HEAVY == set()


def test_no_module_of_the_agent_loads_anything_heavy() -> None:
    modules = [module_name(file) for file in FILES if module_name(file).startswith("agent.")]

    loaded = _loaded_by(f"import {', '.join(modules)}")

    assert {name.partition(".")[0] for name in loaded} & HEAVY == set()


def test_import_of_rankmend_loads_the_hook_only() -> None:
    assert _loaded_by("import rankmend") <= {
        *("rankmend", "rankmend.hook", "rankmend.hook.layout"),
        *("struct", "_struct"),
    }


def test_command_shows_its_help_without_loading_any_daemon() -> None:
    loaded = _loaded_by("import rankmend.cli")

    assert {name.partition(".")[0] for name in loaded} & {*HEAVY, "agent", "detectors"} == set()


def test_command_is_there_before_the_parts_are_on_the_path() -> None:
    """In a wheel they lie in a folder that only a command's start puts there; manual pages are written without one."""
    code = (
        "from rankmend.cli import cli; import click;"
        "context = click.Context(cli); [cli.get_command(context, name) for name in cli.list_commands(context)]"
    )

    loaded = {name.partition(".")[0] for name in _loaded_by(code)}

    assert loaded & {"agent", "detectors", "recovery"} == set()


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import rankmend.cli.run, recovery.launcher.run.one_node", id="run"),
        pytest.param("import recovery.launcher.guardian.main", id="guardian"),
        pytest.param("import rankmend.hook.standby, rankmend.hook.writer", id="rank"),
        pytest.param("import rankmend.hook.fork_server, rankmend.hook.imports", id="fork server"),
        pytest.param(
            "import rankmend.cli.screens.status, recovery.local.report.overview", id="status"
        ),
        pytest.param(
            "import rankmend.cli.screens.incidents, recovery.journal.narration.narrator", id="why"
        ),
    ],
)
def test_start_loads_nothing_that_the_command_may_not_need(code: str) -> None:
    assert _loaded_by(code) & SLOW_TO_LOAD == set()


def test_launcher_that_meets_others_loads_the_controllers_service_only_as_their_host() -> None:
    loaded = _loaded_by("import recovery.launcher.run.meeting")

    assert "recovery.launcher.run.host_guard" in loaded
    assert loaded & {"aiohttp", "jinja2", "uvloop", "recovery.service.server"} == set()


def test_launcher_that_may_take_over_loads_the_controllers_service_in_time(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from recovery.journal.folder.job_key import JobKey
from recovery.journal.limits import Policy
from recovery.launcher.run.host_guard import HostGuard
from recovery.launcher.run.meeting_site import HostFolder, MeetingClient, Site
from recovery.launcher.run.options import Meeting, RunOptions
from tests.support.eventually import eventually
folder = Path({str(tmp_path)!r})
site = Site(
    meeting=Meeting("127.0.0.1", 1, is_host=False), key=JobKey("job:x", "x", "--job"), folder=HostFolder(folder),
    secret=None, name="b", address="127.0.0.1", state=folder / "state", policy=Policy(), budgets=None,
)
guard = HostGuard(site, MeetingClient(site), RunOptions("train.py"), load_after_s=0.0)
guard.open()
assert "recovery.launcher.run.meeting_host" not in sys.modules
guard.start()
eventually(lambda: "recovery.launcher.run.meeting_host" in sys.modules, "it is loaded")
import recovery.launcher.run.meeting_host  # waits for the thread that loads it
guard.close()
"""

    assert "recovery.service.server" in _loaded_by(code)


@pytest.mark.parametrize("command", ["status", "incidents", "report", "why", "logs"])
def test_a_machine_without_jobs_answers_without_making_types_of_records(command: str) -> None:
    words = [command, "--state-dir", "/nonexistent/state"]

    loaded = _loaded_by(
        "import contextlib; from rankmend.cli import cli\n"
        f"with contextlib.suppress(SystemExit): cli({words}, standalone_mode=False)\npass"
    )

    assert "rankmend.cli" in loaded
    assert (
        loaded & {"msgspec", "recovery.api.wire", "recovery.journal.records", *SLOW_TO_LOAD}
        == set()
    )


@pytest.mark.parametrize("command", ["incidents", "report", "why"])
def test_a_machine_without_jobs_answers_without_what_only_a_job_needs(command: str) -> None:
    """Without --state-dir, as people type it. What is left beside `--help`'s own modules takes 5 ms of a processor."""
    loaded = _loaded_by(
        "import contextlib, os; from rankmend.cli import cli\n"
        "os.environ.pop('RANKMEND_STATE_DIR', None); os.environ['XDG_STATE_HOME'] = '/nonexistent'\n"
        f"with contextlib.suppress(SystemExit): cli(['{command}'], standalone_mode=False)\npass"
    )

    assert "recovery.journal.folder.state_folder" in loaded
    assert loaded & {*ONLY_FOR_JOBS, *SLOW_TO_LOAD} == set()


@pytest.mark.parametrize(
    "group", ["gpu", "rdma", "slurm", "agent", "controller", "certificates", "kubernetes"]
)
def test_doctor_on_a_host_without_configurations_loads_neither_daemon(group: str) -> None:
    loaded = _loaded_by(
        "from pathlib import Path; from rankmend.cli import doctor\n"
        "from detectors.doctor.table import FactGroup\n"
        "none = Path('/nonexistent/none.toml')\n"
        "wanted = doctor._Wanted(Path('/proc'), Path('/sys'), none, none, (), None, None, None, None, None)\n"
        f"doctor._examine_group(FactGroup('{group}'), doctor._readers(wanted)[FactGroup('{group}')])"
    )

    assert (
        loaded
        & {"agent.config", "recovery.service.controller_config", "recovery.api.wire", "aiohttp"}
        == set()
    )

"""The wheel as users get it: built, installed into clean environments, and run beside packages named like its parts."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent import FIXTURE, ROOT
from tests.support.eventually import eventually
from tests.support.free_port import free_port
from tests.support.nvml_stub.node import StubNode
from tests.support.nvml_stub.node import build as build_nvml_stub
from tests.support.wheel import (
    DEADLINE_S,
    Environment,
    build_sdist,
    build_wheel,
    has_child,
    make_environment,
    run,
    started,
    wait_said,
)

pytestmark = pytest.mark.process
PARTS = ("agent", "detectors", "recovery")
ENTRY = "rankmend_torchrun.py"  # PyTorch imports it

# Runs as a program of rankmend: imports each module of the wheel, and prints which can't be.
IMPORT_ALL = """
import importlib, sys, traceback
from pathlib import Path
from rankmend.parts_path import PACKAGE_ROOT, PARTS_ROOT, put_on_path
put_on_path()
count = 0
for root, packages in ((PARTS_ROOT, ("agent", "detectors", "recovery")), (PACKAGE_ROOT, ("rankmend",))):
    for package in packages:
        for file in sorted(Path(root, package).rglob("*.py")):
            parts = file.relative_to(root).with_suffix("").parts
            if "parts" in parts or "site" in parts or parts[-1] in ("__main__", "store_host"):
                continue  # the other root's; what Python, or PyTorch's interpreter, runs as a program
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            try:
                importlib.import_module(name)
                count += 1
            except Exception:
                print(name, traceback.format_exc())
print("imported", count)
"""
# Asks each command and sub-command for its help.
HELP_ALL = """
import click
from click.testing import CliRunner
from rankmend.cli import cli
from rankmend.parts_path import put_on_path
put_on_path()
count = 0
def walk(command, words):
    global count
    result = CliRunner().invoke(cli, [*words, "--help"])
    count += 1
    if result.exit_code or "Usage:" not in result.output:
        print(words, result.output, result.exception)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            walk(command.get_command(context, name), [*words, name])
walk(cli, [])
print("asked", count)
"""
# A script with packages of its own that are called as rankmend's parts.
TRAIN = """
import json, os, signal, sys, time
import agent, detectors, recovery, rankmend
print("own", agent.NAME, detectors.NAME, recovery.NAME, flush=True)
print("parts", [one for one in sys.path if "parts" in one], flush=True)
restored = rankmend.restore()
first = restored.step + 1 if restored else 1
for step in range(first, 61):
    time.sleep(0.02)
    rankmend.step(step)
    rankmend.snapshot(step, {"step": step})
    if step == 20 and os.environ["RANK"] == "1" and os.environ["RANKMEND_ATTEMPT"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
print("done from", first, flush=True)
"""
PLUGIN = ROOT / "examples" / "plugin" / "rankmend_example"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What `pip install rankmend` makes."""
    return make_environment(tmp_path_factory.mktemp("base") / "env", wheel)


@pytest.fixture(scope="module")
def whole(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What `pip install rankmend[agent,controller]` makes, and a plugin of another package."""
    folder = tmp_path_factory.mktemp("whole") / "env"
    made = make_environment(folder, wheel, "agent", "controller")
    (made.site / "rankmend_example").symlink_to(PLUGIN)
    info = made.site / "rankmend_example-1.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: rankmend-example\nVersion: 1.0.0\n"
    )
    (info / "entry_points.txt").write_text(
        "[rankmend.collectors]\nentropy = rankmend_example.entropy:EntropyCollector\n"
    )
    return made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a script and packages of its own that are called as rankmend's parts."""
    folder = tmp_path / "project"
    for name in PARTS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"NAME = 'my {name}'\n")
    (folder / "train.py").write_text(TRAIN)
    return folder


@pytest.fixture
def traps(tmp_path: Path) -> str:
    """A folder for PYTHONPATH with packages that end whoever takes them for rankmend's parts."""
    folder = tmp_path / "traps"
    for name in PARTS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise SystemExit('another package')\n")
    return str(folder)


def content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_wheel_has_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    names = {name for name in content(wheel) if ".dist-info/" not in name}

    listed = subprocess.run(
        [
            "git",
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "rankmend",
            ENTRY,
            *PARTS,
            "docs",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip(f"no checkout of git: {listed.stderr}")
    expected = {
        name if name.startswith("rankmend/") or name == ENTRY else f"rankmend/parts/{name}"
        for name in listed.stdout.splitlines()
        if (ROOT / name).is_file() and not (name.startswith("docs/") and name.endswith(".py"))
    }
    assert names == expected
    assert {Path(name).suffix for name in names} >= {".py", ".csv", ".toml", ".j2", ".typed"}


def test_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sdist = build_sdist(ROOT, tmp_path)
    (tmp_path / "wheel").mkdir()

    again = build_wheel(sdist, tmp_path / "wheel")

    assert content(again) == content(wheel)
    assert again.name == wheel.name
    with tarfile.open(sdist) as archive:
        tops = {name.split("/")[1] for name in archive.getnames()}
    assert tops.isdisjoint({"tests", "bench", "examples", ".venv"})


@pytest.mark.parametrize("options", [(), ("-I",), ("-m", "site")], ids=["plain", "-I", "site"])
def test_environment_gets_no_module_named_as_a_part(
    base: Environment, tmp_path: Path, options: tuple[str, ...]
) -> None:
    if options == ("-m", "site"):
        told = run(base.python, *options, cwd=tmp_path).stdout
        assert "parts" not in told
        return
    for name in PARTS:
        done = run(base.python, *options, "-c", f"import rankmend, {name}", cwd=tmp_path)

        assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: No module named '{name}'"


@pytest.mark.parametrize(("program", "words"), [(IMPORT_ALL, "imported"), (HELP_ALL, "asked")])
def test_everything_is_there_in_the_smallest_environment(
    base: Environment, tmp_path: Path, traps: str, program: str, words: str
) -> None:
    done = run(base.python, "-c", program, cwd=tmp_path, PYTHONPATH=traps)

    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    said, count = line.split()
    assert said == words
    assert int(count) > (600 if said == "imported" else 50)


@pytest.mark.parametrize(
    ("line", "code", "names"),
    [
        ("agent", 1, "apscheduler and nvidia-ml-py"),
        ("agent --once", 1, "apscheduler and nvidia-ml-py"),
        ("check node --scan", 64, "apscheduler and nvidia-ml-py"),
        ("controller run --config c.toml", 1, "jinja2 and uvloop"),
        ("report --all --state-dir . --html r.html", 1, "jinja2"),
        ("diagnose hang . --plot p.svg", 2, "matplotlib"),
        ("diagnose slow trace.parquet", 2, "pyarrow"),
    ],
)
def test_command_without_its_extra_says_in_a_line_what_to_type(
    base: Environment, tmp_path: Path, line: str, code: int, names: str
) -> None:
    (tmp_path / "trace.parquet").write_bytes(b"PAR1 is how such a file begins")

    done = run(base.command, *line.split(), cwd=tmp_path)

    assert done.returncode == code, done.stderr
    (said,) = done.stderr.splitlines()
    assert f" needs {names}, which " in said
    assert said.endswith(f" not installed: pip install {names.replace(' and ', ' ')}")
    assert done.stdout == ""


def test_check_for_slurm_without_the_extra_drains_no_node(
    base: Environment, tmp_path: Path
) -> None:
    done = run(base.command, "check", "node", "--scan", "--for", "prolog", cwd=tmp_path)

    assert done.returncode == 0
    assert "node not checked: " in done.stderr
    assert "pip install apscheduler nvidia-ml-py" in done.stderr


def test_doctor_and_agent_init_need_no_extra(base: Environment, tmp_path: Path) -> None:
    doctor = run(base.command, "doctor", "--json", "--timeout", "60", cwd=tmp_path)
    init = run(base.command, "agent", "init", "-", "--no-expect", cwd=tmp_path)

    rows = {one["check"]: one for one in json.loads(doctor.stdout)["checks"]}
    assert rows["python_packages"]["outcome"] == "ok"
    assert "pip install apscheduler nvidia-ml-py" in rows["python_packages"]["found"]
    assert "ModuleNotFoundError" not in doctor.stdout
    assert (init.returncode, init.stderr) == (0, "")


def test_script_with_packages_of_these_names_gets_its_own_and_recovers(
    base: Environment, project: Path, tmp_path: Path
) -> None:
    done = run(
        *(base.command, "run", "--standalone", "--nproc-per-node=2"),
        *(f"--state-dir={tmp_path / 'state'}", f"--agent-socket={tmp_path}/none", "train.py"),
        cwd=project,
        PYTHONPATH=str(project),
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("own my agent my detectors my recovery") == 4  # 2 ranks, twice
    assert done.stdout.count("parts []") == 4
    assert "attempt 2 makes progress on 2 ranks" in done.stderr
    why = run(base.command, "incidents", "--state-dir", str(tmp_path / "state"), cwd=project)
    assert "SIGKILL" in why.stdout


def test_two_launchers_need_no_extra_to_host_a_controller_and_copy_snapshots(
    base: Environment, project: Path, tmp_path: Path, traps: str
) -> None:
    script = (project / "train.py").read_text().replace("range(first, 61)", "range(first, 301)")
    (project / "train.py").write_text(script)
    port = free_port()

    def launcher(name: str) -> Any:
        return started(
            tmp_path / f"{name}.log",
            *(base.command, "run", "--nnodes=2", "--nproc-per-node=1", f"--node-name={name}"),
            *(f"--rdzv-endpoint=127.0.0.1:{port}", f"--state-dir={tmp_path / name}"),
            *("--job=two", f"--checkpoint-dir={tmp_path}", f"--agent-socket={tmp_path}/none"),
            "train.py",
            cwd=project,
            PYTHONPATH=f"{project}{os.pathsep}{traps}",
        )

    with contextlib.ExitStack() as stack:
        first = stack.enter_context(launcher("a"))
        wait_said(tmp_path / "a.log", "hosts the controller")
        second = stack.enter_context(launcher("b"))
        eventually(lambda: has_child(second.pid, "copier_process"), "a copier")
        wait_said(tmp_path / "a.log", "attempt 2 makes progress on 2 ranks")
        codes = [first.wait(DEADLINE_S), second.wait(DEADLINE_S)]

    said = (tmp_path / "a.log").read_text() + (tmp_path / "b.log").read_text()
    assert codes == [0, 0], said
    assert "another package" not in said
    assert "the copier of snapshots" not in said, "one that can't start is named so"


def test_agent_serves_gpus_of_its_child_and_plugins_of_others(
    whole: Environment, project: Path, tmp_path: Path, traps: str
) -> None:
    library, gpus = build_nvml_stub(tmp_path), tmp_path / "gpus"
    StubNode().save(gpus)
    config = tmp_path / "agent.toml"
    config.write_text('disabled = ["kernel_log"]\n[plugins]\nenabled = ["amd", "entropy"]\n')
    log = tmp_path / "agent.log"

    with started(
        log,
        *(whole.command, "agent", "--config", str(config), "--listen", "127.0.0.1:0"),
        *("--socket", str(tmp_path / "agent.sock")),
        cwd=project,
        PYTHONPATH=traps,
        NVML_STUB_STATE=str(gpus),
        LD_LIBRARY_PATH=str(library.parent),
    ) as process:
        port = wait_said(log, "agent started").rpartition(" port=")[2].split()[0]

        def page() -> str:
            done = run(
                whole.python,
                "-c",
                f"import urllib3; print(urllib3.request('GET', 'http://127.0.0.1:{port}/metrics').data.decode())",
                cwd=tmp_path,
            )
            return done.stdout

        eventually(lambda: "rankmend_gpu_temperature_celsius{" in page(), "GPUs")
        eventually(lambda: "rankmend_entropy_available_ratio{" in page(), "plugin")
        eventually(lambda: has_child(process.pid, "agent.nvml.child"), "the child")
        eventually(lambda: 'rankmend_plugin_loaded{plugin="amd"} 1' in page(), "amd")
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0, log.read_text()


def test_root_helper_reads_transceivers_by_a_program_of_its_own(
    whole: Environment, tmp_path: Path, traps: str
) -> None:
    ask = (
        "import subprocess, sys; from rankmend.parts_path import program;"
        "sys.exit(subprocess.run([sys.executable, '-I', *program('agent.root_helper.transceivers'),"
        f" {str(FIXTURE)!r}, '*']).returncode)"
    )

    done = run(whole.python, "-c", ask, cwd=tmp_path, PYTHONPATH=traps)

    assert (done.returncode, done.stderr) == (0, "")


def test_controller_runs_and_has_a_killed_rank_restarted(
    whole: Environment, base: Environment, project: Path, tmp_path: Path, traps: str
) -> None:
    made = tmp_path / "controller"
    init = run(
        *(whole.command, "controller", "init", str(made), "--host", "127.0.0.1"),
        *("--state-dir", str(tmp_path / "journals")),
        cwd=project,
    )
    assert init.returncode == 0, init.stderr
    config = made / "controller.toml"
    config.write_text(config.read_text().replace('listen = ":9477"', 'listen = "127.0.0.1:0"'))
    log = tmp_path / "controller.log"

    with started(
        log,
        *(whole.command, "controller", "run", "--config", str(config)),
        cwd=project,
        PYTHONPATH=traps,
    ) as service:
        port = wait_said(log, "controller started").rpartition(" port=")[2].split()[0]
        contact = (
            *("--controller", f"https://127.0.0.1:{port}", "--ca-file", str(made / "ca.crt")),
            *("--token-file", str(made / "launch.token")),
        )
        done = run(
            *(base.command, "run", "--nproc-per-node=2", "--job=wheel", *contact),
            *(f"--state-dir={tmp_path / 'state'}", f"--agent-socket={tmp_path}/none", "train.py"),
            cwd=project,
            PYTHONPATH=str(project),
        )
        service.send_signal(signal.SIGTERM)
        code = service.wait(DEADLINE_S)

    assert done.returncode == 0, done.stderr + log.read_text()
    assert "attempt 2: ranks 0 to 1 of 2 run here" in done.stderr
    assert code == 0, log.read_text()


def test_wheel_that_is_not_installed_says_so(
    base: Environment, wheel: Path, tmp_path: Path
) -> None:
    done = run(base.python, "-m", "rankmend.cli", "status", cwd=tmp_path, PYTHONPATH=str(wheel))

    assert done.returncode == os.EX_CONFIG
    assert done.stderr == f"rankmend: can't run from an archive: install {wheel} with pip\n"


def test_checkout_and_editable_installation_have_the_parts_at_their_top() -> None:
    done = run(sys.executable, "-c", "import agent, detectors, recovery", cwd=Path("/"))

    assert done.returncode == 0, done.stderr

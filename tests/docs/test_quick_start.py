"""The commands of docs/quick-start.md and docs/start.md, typed as they stand there, on a host that has only what the first part installs."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.eventually import DEADLINE_S
from tests.support.hosts import Fleet, why_not
from tests.support.slurm import missing as slurm_missing
from tests.support.slurm import slurm_cluster

pytestmark = pytest.mark.site

ROOT = Path(__file__).resolve().parents[2]
PARTS = {
    title: text
    for page in ("quick-start.md", "start.md")
    for title, text in re.findall(
        r"^## (.*?)\n(.*?)(?=^## |\Z)",
        (ROOT / "docs" / page).read_text(),
        re.MULTILINE | re.DOTALL,
    )
}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"^# (\S+\.\w+)$", re.MULTILINE)  # of a file, in one of its first lines
PART_S_MAX = 400.0


def commands_of(part: str) -> list[str]:
    """Return what a part has people type, in order."""
    text = "".join(text for kind, text in BLOCK.findall(PARTS[part]) if kind == "console")
    return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]


def write_files(part: str, folder: Path) -> None:
    """Write the files that a part shows."""
    for kind, text in BLOCK.findall(PARTS[part]):
        if kind != "console":
            name = NAME.search(text)
            assert name is not None, f"a block without a file name: {text[:80]}"
            (folder / name[1]).write_text(text)


def script_of(parts: Sequence[str], home: Path, *first: str) -> str:
    """Return a shell script with the commands of these parts: each command is shown, the first that fails ends it, and so does what it has started."""
    head = (
        f". {home}/rankmend/bin/activate",
        "exec >shown 2>&1",
        "trap 'kill $(jobs -p) || true' EXIT",
    )
    typed = [command for name in parts for command in commands_of(name)]
    return "\n".join([*head, *first, "set -ev", *typed, ""])


def test_every_console_block_holds_commands_only_and_every_file_has_a_name(tmp_path: Path) -> None:
    for part, page in PARTS.items():
        write_files(part, tmp_path)
        for kind, text in BLOCK.findall(page):
            assert kind != "console" or all(line.startswith("$ ") for line in text.splitlines())

    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.sbatch", "train.py"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home folder in which the first part has been typed, in a copy of the repository."""
    home = tmp_path_factory.mktemp("home")
    copy = home / "copy"
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--", ":!tests"], cwd=ROOT, capture_output=True, check=True
    ).stdout.decode()
    for name in tracked.rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    make, activate, install = commands_of("Install")
    # What a package index would send is here already: half a gigabyte less to fetch.
    seen = f"""
        echo {sysconfig.get_path("purelib")} >$(ls -d ~/rankmend/lib/*/site-packages)/seen.pth
        printf '#!/bin/sh\\nexec python -m torch.distributed.run "$@"\\n' >~/rankmend/bin/torchrun
        chmod +x ~/rankmend/bin/torchrun"""
    environment = {**os.environ, "HOME": str(home), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for name in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
        environment.pop(name, None)
    environment["PATH"] = f"{Path(sys.executable).resolve().parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ev", "-c", "\n".join([make, activate, seen, install])],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return home


def typed_on_a_host(parts: Sequence[str], home: Path, folder: Path) -> str:
    """Type the commands of parts in a new shell of a new host, with the environment of the first part; return what it showed."""
    work = folder / "work"
    work.mkdir()
    write_files("Install", work)
    typed = work / "typed.sh"  # a file: no command line holds what `pkill -f` looks for
    own = "mount -t tmpfs tmpfs /var/lib"  # where root's hook folder lies
    typed.write_text(script_of(parts, home, own))
    with Fleet(1, folder, visible=[home, work]) as fleet:
        done = fleet["h1"].run(
            ["bash", typed],
            PART_S_MAX,
            check=False,
            env={"HOME": str(work)},
            cwd=work,
        )
    shown = (work / "shown").read_text()
    assert done.returncode == 0, shown
    return shown


needs_hosts = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.mark.torch
@needs_hosts
def test_a_newcomer_breaks_a_job_reads_why_and_fixes_a_script(home: Path, tmp_path: Path) -> None:
    shown = typed_on_a_host(["One machine", "Read", "Fix"], home, tmp_path)

    assert "recovered" in shown
    assert "exit code 1" in shown
    assert "blamed: program" in shown
    assert "every rank ended with exit code 0" in shown.partition("sed -i")[2]
    assert "Goodput" in shown or "goodput" in shown


@pytest.mark.torch
@needs_hosts
def test_a_job_of_torchrun_is_seen_by_the_agent(home: Path, tmp_path: Path) -> None:
    shown = typed_on_a_host(["Beside torchrun"], home, tmp_path)

    assert "rankmend_watched_job_info{" in shown


@pytest.mark.torch
@needs_hosts
def test_a_controller_recovers_jobs_with_the_tokens_made_for_it(home: Path, tmp_path: Path) -> None:
    shown = typed_on_a_host(["A controller"], home, tmp_path)

    assert "llama" in shown


@needs_hosts
def test_an_agent_alone_serves_metrics_and_checks_its_node(home: Path, tmp_path: Path) -> None:
    shown = typed_on_a_host(["Only metrics"], home, tmp_path)

    assert re.search(r"^\d{2,}$", shown, re.MULTILINE)


@pytest.mark.torch
@pytest.mark.skipif(bool(slurm_missing()), reason=slurm_missing())
def test_a_slurm_job_trains_to_its_end(home: Path, tmp_path: Path) -> None:
    write_files("Install", tmp_path)
    write_files("Slurm", tmp_path)
    typed = tmp_path / "typed.sh"
    typed.write_text(script_of(["Slurm"], home))
    with slurm_cluster(tmp_path, 2) as cluster:
        done = cluster.run("bash", str(typed), HOME=str(tmp_path))

        shown = (tmp_path / "shown").read_text()
        assert done.returncode == 0, f"{shown}\n{cluster.logs()}"

    assert "every rank ended with exit code 0" in shown

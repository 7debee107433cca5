"""The Debian package on a real systemd: installed, upgraded under a running job, removed, purged. The RPM in an empty root."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import packages, systemd
from tests.support.eventually import DEADLINE_S
from tests.support.systemd import Bed, running_systemd

pytestmark = [
    pytest.mark.site,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(packages.why_not()), reason=packages.why_not()),
    pytest.mark.skipif(bool(systemd.why_not()), reason=systemd.why_not()),
]

NEXT = "99.1"  # newer than the package under test
CONTROLLER = "/etc/rankmend/controller"
PYTHON = str(packages.SYSTEM_PYTHON)
METRICS = "http://127.0.0.1:9476/metrics"
ENVIRONMENT = ("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8")

TRAIN = """
import os, time
import rankmend

with open(f"/var/tmp/home/rank-{os.environ['RANK']}", "w") as file:
    print(os.getpid(), file=file)
for step in range(100000):
    rankmend.step(step)
    time.sleep(0.05)
"""

# Policy lets a package leave these: dpkg's own records, logs, users, and what other programs keep.
LEFT = (
    "/etc/.pwd.lock",
    "/etc/group",
    "/etc/gshadow",
    "/etc/passwd",
    "/etc/shadow",
    "/etc/subgid",
    "/etc/subuid",
    "/root",
    "/var/cache",
    "/var/lib/dpkg",
    "/var/lib/systemd",
    "/var/log",
    "/var/tmp",
    "/tmp",
)


@pytest.fixture(scope="module")
def debs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The package of this source, and the same of a later version."""
    folder = tmp_path_factory.mktemp("package")
    deb = packages.build_deb(folder)
    first = folder / "first.deb"
    shutil.copy(deb, first)
    return first, packages.with_version(first, NEXT)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory, debs: tuple[Path, Path]) -> Iterator[Bed]:
    files = tmp_path_factory.mktemp("root")
    (files / "srv").mkdir()
    for deb, name in zip(debs, ("first.deb", "next.deb"), strict=True):
        shutil.copy(deb, files / "srv" / name)
    (files / "srv/train.py").write_text(TRAIN)
    with running_systemd(files, has_rankmend=False) as bed:
        bed.run("ip", "link", "set", "lo", "up", check=False)
        bed.run("rm", "-f", "/var/lib/man-db/auto-update")  # indexing all pages takes long
        bed.run(
            "sh", "-c", "rm -rf /etc/rankmend /opt/rankmend /var/lib/rankmend*"
        )  # of this machine
        yield bed


@pytest.fixture
def clean(bed: Bed) -> Bed:
    """A machine without the package."""
    bed.stop("job")
    bed.run(*ENVIRONMENT, "dpkg", "--purge", "rankmend", check=False, timeout_s=DEADLINE_S)
    bed.run(
        "rm", "-rf", "/opt/rankmend", "/etc/rankmend", "/var/tmp/home", "/var/tmp/ckpt", check=False
    )
    bed.run("systemctl", "reset-failed", check=False)
    return bed


@pytest.fixture
def installed(bed: Bed) -> Bed:
    """A machine with the package, as it comes."""
    if bed.run("test", "-e", "/usr/bin/rankmend", check=False).returncode != 0:
        install(bed)
    return bed


def do(bed: Bed, *command: str) -> str:
    """Run a command as root's shell would; return both outputs. Fails with what dpkg and the services have said."""
    done = bed.run(*ENVIRONMENT, *command, check=False, timeout_s=DEADLINE_S)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def install(bed: Bed, name: str = "first") -> str:
    return do(bed, "dpkg", "--force-confold,unsafe-io", "--install", f"/srv/{name}.deb")


def is_active(bed: Bed, unit: str) -> bool:
    return bed.show(unit, "ActiveState") == "active"


def get(bed: Bed, url: str) -> str:
    script = (
        "import sys,urllib.request as u;print(u.urlopen(sys.argv[1],timeout=10).read().decode())"
    )
    return bed.run(PYTHON, "-c", script, url, check=False).stdout


def changed_files(bed: Bed) -> set[str]:
    """Return the paths that differ from the machine as it was before the test."""
    listed = bed.run(
        "find", "/mnt/changes", "-mindepth", "1", "-not", "-type", "d", "-printf", "/%P\n"
    ).stdout
    return {path for path in listed.splitlines() if not path.startswith(LEFT)}


def start_job(bed: Bed, *options: str) -> None:
    """Start `rankmend run` as a service of the user nobody, as a scheduler would."""
    do(bed, "install", "-d", "-o", "nobody", "/var/tmp/home", "/var/tmp/ckpt")
    command = [
        "rankmend",
        "run",
        *options,
        "--nproc-per-node",
        "2",
        "--checkpoint-dir",
        "/var/tmp/ckpt",
    ]
    do(
        bed,
        *("systemd-run", "--quiet", "--unit=job", "--uid=nobody", "--setenv=HOME=/var/tmp/home"),
        *("--setenv=PATH=/usr/bin:/bin", *command, "/srv/train.py"),
    )
    bed.wait_for(lambda: len(ranks(bed)) == 2, "both ranks of the job")


def ranks(bed: Bed) -> dict[str, str]:
    """Return the processes of the job's ranks that run, by rank."""
    script = (
        "cd /var/tmp/home; for f in rank-*; do p=$(cat $f); "
        '[ -z "$p" ] || [ ! -d /proc/$p ] || echo ${f#rank-} $p; done'
    )
    found = bed.run("sh", "-c", script, check=False).stdout.split()
    return dict(zip(found[::2], found[1::2], strict=True))


def is_started_anew(bed: Bed, rank: str, pid: str) -> bool:
    """Return whether both ranks run, this one as another process than ``pid``."""
    found = ranks(bed)
    return set(found) == {"0", "1"} and found[rank] != pid


def step_of(bed: Bed) -> int:
    """Return the highest step that the agent has seen of the job."""
    steps = [
        line.rpartition(" ")[2]
        for line in get(bed, METRICS).splitlines()
        if line.startswith("rankmend_rank_step_number{")
    ]
    return max((int(float(step)) for step in steps), default=-1)


def test_job_agent_and_controller_live_through_an_upgrade_and_a_purge_leaves_nothing(
    clean: Bed,
) -> None:
    bed = clean
    before = changed_files(bed)
    install(bed)
    bed.wait_for(lambda: "rankmend_" in get(bed, METRICS), "the metrics")
    assert is_active(bed, "rankmend-agent-helper.socket")
    assert bed.show("rankmend-controller", "UnitFileState") == "disabled"
    assert not is_active(bed, "rankmend-controller")

    do(
        bed,
        "rankmend",
        "controller",
        "init",
        CONTROLLER,
        "--host",
        "localhost",
        "--user",
        "rankmend-controller",
    )
    do(bed, "systemctl", "enable", "--now", "rankmend-controller")
    do(bed, "install", "-m", "600", "-o", "nobody", f"{CONTROLLER}/launch.token", "/var/tmp/token")
    way = (
        "--controller",
        "https://localhost:9477",
        "--ca-file",
        f"{CONTROLLER}/ca.crt",
        "--token-file",
    )
    start_job(bed, *way, "/var/tmp/token", "--job", "kept")
    bed.wait_for(lambda: step_of(bed) > 5, "steps of the job in the metrics")
    pids, agent = ranks(bed), bed.show("rankmend-agent", "MainPID")
    launcher = bed.show("job", "MainPID")

    said = install(bed, "next")

    assert ranks(bed) == pids
    assert do(bed, "rankmend", "--version").strip() == f"rankmend, version {NEXT}"
    assert bed.show("rankmend-agent", "MainPID") not in (agent, "0")
    assert bed.show("rankmend-controller", "StatusText") == "1 job resumed"
    after = step_of(bed)
    bed.wait_for(lambda: step_of(bed) > after, "further steps, seen by the new agent")

    do(bed, "kill", "-9", pids["1"])  # the old launcher still has all its modules and programs
    bed.wait_for(lambda: is_started_anew(bed, "1", pids["1"]), "the recovery")
    incidents = do(bed, "rankmend", "incidents", *way, f"{CONTROLLER}/admin.token", "--json")
    assert json.loads(incidents), incidents
    assert bed.show("job", "MainPID") == launcher
    assert "uses it. `/usr/lib/rankmend/setup clean` removes it later" in said

    bed.stop("job")
    install(bed, "first")  # a downgrade
    assert bed.run("sh", "-c", "ls /opt/rankmend/versions | wc -l").stdout.strip() == "1"
    assert is_active(bed, "rankmend-agent")
    assert is_active(bed, "rankmend-controller")

    do(bed, "dpkg", "--remove", "rankmend")
    kept = changed_files(bed)
    assert f"{CONTROLLER}/ca.key" in kept
    assert any(path.startswith("/var/lib/rankmend-controller/") for path in kept)
    assert not any(path.startswith(("/opt/rankmend", "/usr/bin/rankmend")) for path in kept)
    assert not is_active(bed, "rankmend-agent")
    do(bed, "dpkg", "--purge", "rankmend")

    assert changed_files(bed) - before == set()


def test_python_of_the_system_and_of_users_sees_nothing_of_the_package(installed: Bed) -> None:
    names = "('rankmend', 'agent', 'recovery', 'detectors', 'numpy', 'msgspec')"
    probe = (
        "import sys, sysconfig, importlib.util as u\n"
        f"print(sys.path, sysconfig.get_paths(), [name for name in {names} if u.find_spec(name)])"
    )
    here = subprocess.run(
        [*ENVIRONMENT, PYTHON, "-c", probe], cwd="/", capture_output=True, text=True, check=True
    )

    assert do(installed, PYTHON, "-c", probe) == here.stdout
    assert (
        do(installed, "setpriv", "--reuid=65534", "--clear-groups", PYTHON, "-c", probe)
        == here.stdout
    )


def test_command_takes_nothing_from_pythonpath_and_its_ranks_take_all(installed: Bed) -> None:
    for name in ("numpy", "agent", "msgspec", "click"):
        line = f"raise SystemExit('the user has {name}, too')"
        do(installed, "sh", "-c", f'mkdir -p /var/tmp/own; echo "{line}" >/var/tmp/own/{name}.py')
    do(
        installed,
        "sh",
        "-c",
        "echo 'import sys; print(sys.executable, sys.path)' >/var/tmp/show.py",
    )
    own = ("env", "PYTHONPATH=/var/tmp/own")

    shown = do(
        installed, *own, "rankmend", "run", "--checkpoint-dir", "/var/tmp/show", "/var/tmp/show.py"
    )

    assert "/usr/bin/python3 [" in shown
    assert "'/var/tmp/own'" in shown


def test_manual_pages_and_completion_are_where_man_and_shells_look(installed: Bed) -> None:
    page = do(installed, "man", "-P", "cat", "rankmend-run")
    asked = ("COMP_WORDS=rankmend contr", "COMP_CWORD=1", "_RANKMEND_COMPLETE=bash_complete")
    completed = do(installed, "env", *asked, "rankmend")

    assert "Exit codes: 0 all ranks finished" in page
    assert "--nproc-per-node" in page
    assert completed == "plain,controller\n"
    script = "/usr/share/bash-completion/completions/rankmend"
    do(installed, "bash", "-c", f"source {script} && complete -p rankmend")


def test_systemd_finds_nothing_wrong_with_the_installed_units(installed: Bed) -> None:
    units = (
        "rankmend-agent.service",
        "rankmend-agent-helper.socket",
        "rankmend-controller.service",
    )

    assert installed.run("systemd-analyze", "verify", *units).stderr == ""


def test_changed_configuration_survives_an_upgrade_and_a_broken_one_keeps_the_old_agent(
    installed: Bed,
) -> None:
    pid = installed.show("rankmend-agent", "MainPID")
    do(installed, "sh", "-c", "echo 'colour = 1' >>/etc/rankmend/agent.toml")
    init = ("rankmend", "controller", "init", CONTROLLER, "--host", "localhost")
    do(installed, *init, "--user", "rankmend-controller")
    do(installed, "sh", "-c", f"echo '# ours' >>{CONTROLLER}/controller.toml")

    said = install(installed, "next")

    assert "rankmend-agent was not restarted" in said
    assert "colour" in said
    assert installed.show("rankmend-agent", "MainPID") == pid
    assert do(installed, "tail", "-n", "1", "/etc/rankmend/agent.toml") == "colour = 1\n"
    verified = installed.run(
        *ENVIRONMENT, "dpkg", "--verify", "rankmend", check=False
    ).stdout.split()
    assert verified[2::3] == ["/etc/rankmend/agent.toml", f"{CONTROLLER}/controller.toml"]
    config = do(installed, "cat", f"{CONTROLLER}/controller.toml")
    assert f'tokens_file = "{CONTROLLER}/tokens.toml"' in config
    assert config.endswith("# ours\n")
    assert installed.run("sh", "-c", "ls /opt/rankmend/versions | wc -l").stdout.strip() == "2"


def test_full_disk_fails_the_configuration_and_dpkg_recovers_when_there_is_room(clean: Bed) -> None:
    do(clean, "mkdir", "-p", "/opt/rankmend")
    do(clean, "mount", "-t", "tmpfs", "-o", "nr_inodes=6500", "tmpfs", "/opt/rankmend")
    try:
        failed = clean.run(
            *ENVIRONMENT, "dpkg", "--install", "/srv/first.deb", check=False, timeout_s=240
        )
        assert failed.returncode != 0
        assert "make room, then: dpkg --configure -a" in failed.stderr

        do(clean, "mount", "-o", "remount,nr_inodes=100000", "/opt/rankmend")
        do(clean, "dpkg", "--configure", "-a")

        assert is_active(clean, "rankmend-agent")
        do(clean, "dpkg", "--purge", "rankmend")
    finally:
        clean.run("umount", "-l", "/opt/rankmend", check=False)


def test_environment_of_pip_in_the_way_is_refused_and_a_running_agent_of_pip_is_named(
    clean: Bed,
) -> None:
    do(clean, "mkdir", "-p", "/opt/rankmend")
    do(clean, "touch", "/opt/rankmend/pyvenv.cfg")
    refused = clean.run(
        *ENVIRONMENT, "dpkg", "--install", "/srv/first.deb", check=False, timeout_s=240
    )
    do(clean, "rm", "-rf", "/opt/rankmend")
    assert refused.returncode != 0
    assert "mv /opt/rankmend /opt/rankmend.pip" in refused.stderr

    pip = "exec -a /srv/pip/bin/rankmend python3 -c 'import signal; signal.pause()' /srv/pip/bin/rankmend agent --config x"
    do(clean, "systemd-run", "--quiet", "--unit=pip-agent", "bash", "-c", pip)
    try:
        said = install(clean)
    finally:
        clean.stop("pip-agent")

    assert "another agent runs, not the package's: process" in said
    assert not is_active(clean, "rankmend-agent")


def test_job_goes_on_when_the_package_is_removed_and_purged_beneath_it(installed: Bed) -> None:
    start_job(installed)
    pids = ranks(installed)

    said = do(installed, "dpkg", "--purge", "rankmend")

    do(installed, "kill", "-9", pids["0"])
    installed.wait_for(
        lambda: is_started_anew(installed, "0", pids["0"]),
        "the recovery",
    )
    assert "uses it" in said


def run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("rpmbuild") is None, reason="rpmbuild is not installed")
def test_rpm_has_the_same_files_and_installs_into_an_empty_root(
    debs: tuple[Path, Path], tmp_path: Path
) -> None:
    tree = packages.rpm_tree_of(debs[0], tmp_path)
    wanted = {f"/{path.relative_to(tree)}" for path in tree.rglob("*") if not path.is_dir()}
    wanted = {f"{path}.gz" if path.startswith("/usr/share/man/") else path for path in wanted}
    packages.load_build().build_rpm(tmp_path, tree, tmp_path / "made", is_fast=True)
    (rpm,) = (tmp_path / "made").glob("rankmend-*.rpm")

    root = tmp_path / "root"
    root.mkdir()
    run("rpm", "--root", root, "--initdb")
    run("rpm", "--root", root, "--nodeps", "--noscripts", "-i", rpm)

    listed = run("rpm", "-qlp", rpm).splitlines()
    assert wanted <= set(listed)
    assert {
        f"/{path.relative_to(root)}"
        for path in root.rglob("*")
        if path.is_file() or path.is_symlink()
    } >= wanted
    assert run("rpm", "-qcp", rpm).split() == [
        "/etc/rankmend/agent.toml",
        "/etc/rankmend/controller/controller.toml",
    ]
    assert "/usr/bin/python3." in run("rpm", "-qp", "--requires", rpm)
    scripts = run("rpm", "-qp", "--scripts", rpm)
    assert "setup activate" in scripts
    assert "setup deactivate" in scripts

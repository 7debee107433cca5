"""deploy/compose.yaml: a valid file, whose mounts are the files that other tests run, without a secret in it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from recovery.service.controller_config import load
from recovery.service.roles import Role
from recovery.service.tokens import read_tokens

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
FILE = DEPLOY / "compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("setup", "controller", "agent")
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def mounts(service: str) -> dict[str, str]:
    """Return what is mounted where."""
    parts = [one.split(":") for one in SERVICES[service].get("volumes", ())]
    return {target: source for source, target, *_mode in parts}


def run(*argv: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        argv,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_file_fits_the_compose_specification() -> None:
    pytest.importorskip("check_jsonschema", reason="no check-jsonschema: rankmend[dev]")
    checker = Path(sys.executable).with_name("check-jsonschema")

    checked = run(str(checker), "--builtin-schema", "vendor.compose-spec", str(FILE))

    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="no docker-compose")
def test_docker_compose_reads_the_file() -> None:
    read = run("docker-compose", "-f", str(FILE), "config", "-q")

    assert read.returncode == 0, read.stderr


def test_every_mounted_file_is_there_and_every_volume_is_declared() -> None:
    for service in SERVICES:
        for source in mounts(service).values():
            if source.startswith("."):
                assert (DEPLOY / source).exists(), f"{service}: {source}"
            else:
                assert source in COMPOSE["volumes"], f"{service}: {source}"


def test_mounts_are_the_shipped_files_and_no_copies() -> None:
    assert mounts("prometheus")["/usr/share/rankmend/prometheus"] == "./prometheus"
    assert mounts("alertmanager")["/usr/share/rankmend/alertmanager"] == "./alertmanager"
    assert mounts("agent")["/etc/rankmend/agent.toml"] == "./agent.toml"
    assert mounts("grafana")["/etc/grafana/provisioning"] == "./grafana/provisioning"
    (provider,) = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/dashboards/rankmend.yml").read_text()
    )["providers"]
    assert mounts("grafana")[provider["options"]["path"]] == "./grafana/dashboards"


@pytest.mark.parametrize(
    ("service", "path"),
    [
        ("prometheus", "prometheus/rankmend-controller.yml"),
        ("alertmanager", "alertmanager/rankmend.yml"),
        ("grafana", "grafana/provisioning/datasources/rankmend.yml"),
    ],
)
def test_hosts_in_the_configurations_are_names_of_services(service: str, path: str) -> None:
    aliases = {
        alias
        for one in SERVICES.values()
        for alias in one.get("networks", {}).get("default", {}).get("aliases", ())
    }

    named = set(re.findall(r"\b(\w+\.example):\d+", (DEPLOY / path).read_text()))

    assert named - {"pager.example"} <= aliases
    assert named


def test_images_are_pinned_and_ours_has_the_version_of_this_tree() -> None:
    from rankmend.version import RANKMEND_VERSION

    for name, service in SERVICES.items():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"]), name
    assert {SERVICES[name]["image"] for name in OURS} == {f"rankmend:{RANKMEND_VERSION}"}
    assert re.search(r"^FROM python:\d+\.\d+\.\d+-slim", DOCKERFILE, re.MULTILINE)


def test_image_runs_as_the_number_that_kubernetes_and_the_secrets_files_have() -> None:
    (user,) = re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE)
    deployment = yaml.safe_load((DEPLOY / "kubernetes/controller/deployment.yaml").read_text())
    context = deployment["spec"]["template"]["spec"]["securityContext"]
    setup = (DEPLOY / "compose/setup.sh").read_text()

    assert user == f"{context['runAsUser']}:{context['runAsGroup']}"
    assert "--gid 10001 rankmend && useradd --system --uid 10001 --gid 10001" in DOCKERFILE
    assert re.findall(r"RANKMEND_UID:-(\d+)", setup) == [user.partition(":")[0]]


def test_services_are_watched_restarted_and_open_to_this_machine_alone() -> None:
    for name, service in SERVICES.items():
        if name != "setup":
            assert service["healthcheck"]["test"][0] == "CMD", name
            assert service["restart"] == "unless-stopped", name
        assert service["cap_drop"] == ["ALL"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name


def test_no_secret_stands_in_the_file() -> None:
    for name, service in SERVICES.items():
        for variable in service.get("environment", {}):
            is_secret = re.search("PASSWORD|TOKEN|KEY|SECRET", variable)
            assert not is_secret or variable.endswith("__FILE"), (name, variable)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `setup` fills, in a folder of ours."""
    if os.geteuid() != 0:
        pytest.skip("setup.sh gives files to other users: it needs root")
    folder = tmp_path_factory.mktemp("compose") / "secrets"
    rankmend = Path(sys.executable).with_name("rankmend")
    done = run("sh", str(DEPLOY / "compose/setup.sh"), str(folder), RANKMEND=str(rankmend))
    assert done.returncode == 0, done.stderr
    return folder


def test_setup_makes_the_files_that_the_configurations_name(secrets: Path) -> None:
    for service, name in (("prometheus", "rankmend-controller"), ("alertmanager", "rankmend")):
        whole = (DEPLOY / service / f"{name}.yml").read_text()
        text = re.sub(r"^\s*#.*$", "", whole, flags=re.MULTILINE)  # examples of receivers
        assert f"/{service}/{name}.yml" in SERVICES[service]["command"][0], "the file that it runs"
        wanted = set(re.findall(rf"_file: (/etc/{service}/\S+)", text))
        assert mounts(service)[f"/etc/{service}"] == f"{service}-secrets"
        for path in wanted:
            file = secrets / service / Path(path).name
            assert file.stat().st_mode & 0o777 == 0o600, file
        assert len(wanted) == 2
    password = Path(SERVICES["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"])
    assert mounts("grafana")[str(password.parent)] == "grafana-secrets"
    assert len((secrets / "grafana" / password.name).read_text()) == 32


def test_controller_reads_the_configuration_that_setup_made(secrets: Path, tmp_path: Path) -> None:
    text = (secrets / "controller" / "controller.toml").read_text()
    assert str(secrets) not in text, "paths are those inside of the container"
    path = tmp_path / "controller.toml"
    path.write_text(text)

    config = load(path)

    assert config.alertmanagers.urls == ("http://alertmanager.example:9093",)
    (receiver,) = re.findall(
        r"- name: (rankmend-controller)\b", (DEPLOY / "alertmanager/rankmend.yml").read_text()
    )
    assert config.alertmanagers.receiver == receiver
    assert config.discovery.nodes == (SERVICES["agent"]["hostname"],)
    assert config.tls is not None
    where = mounts("controller")
    for named in (config.tokens_file, config.tls.cert_file, config.tls.key_file):
        assert named is not None
        assert where[str(Path(named).parent)] == "controller-secrets"
        assert (secrets / "controller" / Path(named).name).is_file()
    assert where[config.state_dir] == "controller-state"
    roles = {one.subject: set(one.roles) for one in read_tokens(secrets / "controller/tokens.toml")}
    assert roles["prometheus"] == {Role.FLEET_READ}
    assert roles["alertmanager"] == {Role.ALERT}


def test_a_second_setup_overwrites_nothing(secrets: Path) -> None:
    before = (secrets / "prometheus/rankmend.token").read_text()

    again = run("sh", str(DEPLOY / "compose/setup.sh"), str(secrets), RANKMEND="false")

    assert again.returncode == 1
    assert "is there already" in again.stderr
    assert (secrets / "prometheus/rankmend.token").read_text() == before


@pytest.mark.parametrize("service", ["controller", "agent"])
def test_our_command_has_the_options_that_the_service_gives(service: str) -> None:
    command = [str(one) for one in SERVICES[service]["command"]]

    shown = run(str(Path(sys.executable).with_name("rankmend")), *command, "--help")

    assert shown.returncode == 0, shown.stderr


def test_dockerfile_copies_what_the_wheel_is_built_from() -> None:
    copied = re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE)

    sources = {word for line in copied for word in line.split()}

    assert all((ROOT / word).exists() for word in sources)
    assert {"rankmend", "agent", "detectors", "recovery", "pyproject.toml"} <= sources


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's folders, with what the Dockerfile copies into them; its system is this one's."""
    if os.geteuid() != 0 or shutil.which("bwrap") is None:
        pytest.skip("the Dockerfile's commands need root and bubblewrap")
    root = tmp_path_factory.mktemp("image")
    for name in ("opt", "run", "src", "var/lib"):
        (root / name).mkdir(parents=True)
    shutil.copytree("/etc", root / "etc", symlinks=True, ignore_dangling_symlinks=True)
    for sources, target in re.findall(r"^COPY (.*) (\S+)$", DOCKERFILE, re.MULTILINE):
        for word in sources.split():
            here, there = ROOT / word, root / target.lstrip("/")
            if here.is_dir():
                shutil.copytree(here, there)
            else:
                there.mkdir(parents=True, exist_ok=True)
                shutil.copy(here, there)
    return root


def in_image(image: Path, line: str) -> "subprocess.CompletedProcess[str]":
    """Run a line of shell with the image's folders at their places, /usr of this system, and nothing else of it."""
    links = [
        ("usr/bin", "/bin"),
        ("usr/sbin", "/sbin"),
        ("usr/lib", "/lib"),
        ("usr/lib64", "/lib64"),
    ]
    words = ["bwrap", "--die-with-parent", "--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]  # fmt: skip
    for link in links:
        words += ["--symlink", *link]
    for folder in ("etc", "opt", "run", "src", "var"):
        words += ["--bind", str(image / folder), f"/{folder}"]
    cache = Path("/root/.cache/pip")  # a second run downloads nothing
    if cache.is_dir():
        words += ["--bind", str(cache), "/tmp/cache"]
    variables = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/tmp",
        "PIP_CACHE_DIR": "/tmp/cache",
        "PIP_NO_COMPILE": "0",  # false is what turns this option on: https://pip.pypa.io/en/stable/topics/configuration/
    }
    return run(*words, "sh", "-c", line, **variables)


@pytest.mark.timeout(1800)  # it installs fifty packages
def test_the_dockerfile_builds_an_image_that_runs_as_its_user(image: Path) -> None:
    lines = re.findall(r"^RUN (.*)$", DOCKERFILE, re.MULTILINE)
    (user, group) = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)[0]
    (entry,) = re.findall(r'^ENTRYPOINT \["(.*)"\]$', DOCKERFILE, re.MULTILINE)

    for line in lines:
        done = in_image(image, line.replace("--no-cache-dir ", ""))
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"

    drop = f"setpriv --reuid {user} --regid {group} --clear-groups --no-new-privs"
    for words in ("controller run --help", "agent --help", "--version"):
        done = in_image(image, f"{drop} {entry} {words}")
        assert done.returncode == 0, f"{words}\n{done.stderr}"
    write = "id -u && touch /var/lib/rankmend-controller/own /run/rankmend/own && ! touch /opt/own"
    assert in_image(image, f"{drop} sh -c '{write}'").stdout == f"{user}\n"
    pages = "rankmend/parts/docs/operate/runbooks/controller.md"
    assert list(image.glob(f"opt/rankmend/lib/python3.*/site-packages/{pages}"))

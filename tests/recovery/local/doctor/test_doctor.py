"""What `rankmend doctor` says of controllers, certificates, folders, limits and interpreters: real ones, one gap each."""

import os
import resource
import shlex
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from detectors.doctor.agent import ConfigState
from detectors.doctor.check import CheckResult, HostOutcome, judge
from detectors.doctor.controller import CERTIFICATE_CHECKS, CONTROLLER_CHECKS
from detectors.doctor.limits import LIMIT_CHECKS, SHM_BYTES_MIN, LimitFacts
from detectors.doctor.python import PYTHON_CHECKS, PythonFacts
from detectors.doctor.storage import STORAGE_CHECKS, StorageFacts
from rankmend.child_call import call_in_child
from recovery.local.doctor.certificates import files_of, read_certificates
from recovery.local.doctor.controller import load_config, read_controller
from recovery.local.doctor.folders import look_at_checkpoints, look_at_state, read_storage
from recovery.local.doctor.limits import SHARED_MEMORY, read_limits
from recovery.local.doctor.python import read_python
from recovery.service.http import authority
from recovery.service.roles import Role
from recovery.service.tokens import make_token
from tests.support.service import Running, make_folder, running

pytestmark = pytest.mark.process

OK, LACKING, BROKEN = HostOutcome.OK, HostOutcome.LACKING, HostOutcome.BROKEN
UNKNOWN, NOT_APPLICABLE = HostOutcome.UNKNOWN, HostOutcome.NOT_APPLICABLE
NOWHERE = Path("/nonexistent/controller.toml")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("controller")
    make_folder(folder)
    with running(folder) as service:
        yield service


def asked(
    up: Running, url: str | None = None, token: Path | None = None, ca: Path | None = None
) -> dict[str, CheckResult]:
    facts = read_controller([url or up.url], token, ca, NOWHERE)
    return {result.check: result for result in judge(CONTROLLER_CHECKS, facts)}


# The controller.


def test_controller_that_answers_lacks_nothing(up: Running) -> None:
    found = asked(up, token=up.folder / "admin.token", ca=up.ca)

    assert {name: result.outcome for name, result in found.items()} == {
        "controller_reach": OK,
        "controller_trust": OK,
        "controller_config": NOT_APPLICABLE,
        "controller_state": NOT_APPLICABLE,
        "controller_token": OK,
    }


def test_none_that_is_named_is_no_gap() -> None:
    results = judge(CONTROLLER_CHECKS, read_controller([], None, None, NOWHERE))

    assert {result.outcome for result in results} == {NOT_APPLICABLE}


def test_nobody_at_the_address(up: Running) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found = asked(up, f"https://127.0.0.1:{free.getsockname()[1]}")["controller_reach"]

    assert (found.outcome, "systemctl status" in found.mend) == (BROKEN, True)


def test_ca_of_another_cluster(up: Running, tmp_path: Path) -> None:
    other = tmp_path / "ca.crt"
    authority.make_authority(other, tmp_path / "ca.key", "another")

    found = asked(up, token=up.folder / "admin.token", ca=other)["controller_trust"]

    assert (found.outcome, "--ca-file ca.crt" in found.mend) == (BROKEN, True)


def serve_once(server: socket.socket, answer: Callable[[socket.socket], None]) -> int:
    """Answer one connection in a child; return its pid."""
    child = os.fork()
    if child == 0:
        try:
            answer(server.accept()[0])
        finally:
            os._exit(0)
    return child


def test_name_that_the_certificate_does_not_have(up: Running, tmp_path: Path) -> None:
    cert, key = tmp_path / "server.crt", tmp_path / "server.key"
    authority.make_server((up.ca, up.folder / "ca.key"), cert, key, ["other.example"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)

    with socket.create_server(("127.0.0.1", 0)) as server:
        child = serve_once(server, lambda one: context.wrap_socket(one, server_side=True).close())
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        found = asked(up, url, ca=up.ca)["controller_trust"]
        os.waitpid(child, 0)

    assert (found.outcome, "by a name that" in found.mend) == (BROKEN, True)


def test_controller_that_speaks_no_tls(up: Running) -> None:
    def refuse(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        child = serve_once(server, refuse)
        found = asked(up, f"https://127.0.0.1:{server.getsockname()[1]}", ca=up.ca)
        os.waitpid(child, 0)

    assert found["controller_trust"].outcome is BROKEN
    assert "http://" in found["controller_trust"].mend


def test_ca_file_without_a_certificate(up: Running, tmp_path: Path) -> None:
    empty = tmp_path / "ca.crt"
    empty.write_text("not a certificate\n")

    assert asked(up, ca=empty)["controller_trust"].outcome is BROKEN


def test_token_that_is_missing_unknown_or_open_to_others(up: Running, tmp_path: Path) -> None:
    unknown = tmp_path / "unknown.token"
    unknown.write_text(make_token("mallory", [Role.READ])[0])
    unknown.chmod(0o600)
    open_file = tmp_path / "open.token"
    open_file.write_text((up.folder / "admin.token").read_text())
    open_file.chmod(0o644)

    missing = asked(up, ca=up.ca)["controller_token"]
    refused = asked(up, token=unknown, ca=up.ca)["controller_token"]
    readable = asked(up, token=open_file, ca=up.ca)["controller_token"]

    assert (missing.outcome, refused.outcome, readable.outcome) == (LACKING, BROKEN, BROKEN)
    assert "token add" in missing.mend
    assert "chmod 600" in readable.mend
    secret = open_file.read_text().strip()
    assert not any(secret in result.found for result in (missing, refused, readable))


def test_launch_token_is_known_though_it_may_not_read(up: Running) -> None:
    found = asked(up, token=up.folder / "launch.token", ca=up.ca)

    assert {result.outcome for result in found.values()} == {OK, NOT_APPLICABLE}


def test_the_agents_controller_is_asked_without_a_persons_token(up: Running) -> None:
    facts = read_controller([up.url], None, up.ca, NOWHERE, is_agents=True)

    found = {result.check: result.outcome for result in judge(CONTROLLER_CHECKS, facts)}
    assert (found["controller_reach"], found["controller_token"]) == (OK, NOT_APPLICABLE)


def test_configuration_of_a_controller_that_can_not_start(tmp_path: Path) -> None:
    path = tmp_path / "controller.toml"
    path.write_text('listen = ":9477"\nstate_dir = "/x"\n')  # open to the network, no TLS

    found = judge(CONTROLLER_CHECKS, read_controller([], None, None, path))[2]

    assert (found.check, found.outcome) == ("controller_config", BROKEN)
    assert "[tls]" in found.found


def test_configuration_as_a_package_brings_it_is_no_controller_on_this_host(tmp_path: Path) -> None:
    path = tmp_path / "controller.toml"
    shipped = Path(__file__).parents[4] / "deploy/controller.toml"
    path.write_text(shipped.read_text())

    facts = read_controller([], None, None, path)

    assert facts.config_state is ConfigState.ABSENT
    assert facts.state is None


def test_state_of_a_controller_on_this_host(up: Running) -> None:
    facts = read_controller([], None, None, up.folder / "controller.toml")
    there = judge(CONTROLLER_CHECKS, facts)[3]
    assert facts.state is not None
    missing = replace(facts, state=replace(facts.state, is_there=False))

    gone = judge(CONTROLLER_CHECKS, missing)[3]

    assert there.check == "controller_state"
    assert there.outcome in (OK, LACKING)  # LACKING: /tmp in memory
    assert (gone.outcome, "rankmend-controller  # makes" in gone.mend) == (LACKING, True)


# Certificates.


def certificates_at(days: float, folder: Path, *keys: Path) -> dict[str, CheckResult]:
    now = datetime.now(timezone.utc) + timedelta(days=days)
    facts = read_certificates([str(folder / "server.crt")], [str(key) for key in keys], now)
    return {result.check: result for result in judge(CERTIFICATE_CHECKS, facts)}


@pytest.mark.parametrize(
    ("days", "outcome", "said"),
    [
        (0, OK, "825 days left"),
        (authority.LEAF_DAYS - 29, LACKING, "expires in 29 days"),
        (authority.LEAF_DAYS + 3, BROKEN, "expired 3 days ago"),
        (-7, BROKEN, "clock"),
    ],
)
def test_certificate_ends_begins_or_will_end_soon(
    up: Running, days: float, outcome: HostOutcome, said: str
) -> None:
    found = certificates_at(days, up.folder)["certificates_valid"]

    assert found.outcome is outcome, found
    assert said in f"{found.found} {found.mend}".replace("824 days", "825 days")


def test_key_that_others_may_read_or_that_is_gone(up: Running, tmp_path: Path) -> None:
    key = tmp_path / "server.key"
    key.write_bytes((up.folder / "server.key").read_bytes())
    key.chmod(0o644)

    readable = certificates_at(0, up.folder, key)["certificates_private"]
    gone = certificates_at(0, up.folder, tmp_path / "no.key")["certificates_private"]

    assert (readable.outcome, f"chmod 600 {key}" in readable.mend) == (BROKEN, True)
    assert gone.outcome is BROKEN


def test_file_that_is_no_certificate_and_one_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "server.crt").write_text("hello")

    wrong = certificates_at(0, tmp_path)["certificates_valid"]
    gone = certificates_at(0, tmp_path / "x")["certificates_valid"]

    assert (wrong.outcome, gone.outcome) == (BROKEN, BROKEN)


def test_files_of_a_controller_are_those_of_its_configuration(up: Running) -> None:
    config = load_config(up.folder / "controller.toml")[0]
    assert config is not None

    certificates, keys = files_of(config)

    assert certificates == [str(up.folder / "server.crt"), str(up.folder / "ca.crt")]
    assert keys == [str(up.folder / "server.key")]


# Folders.


def storage(state: Path, checkpoints: Path | None = None) -> dict[str, CheckResult]:
    results = judge(STORAGE_CHECKS, read_storage({}, state, checkpoints))
    return {result.check: result for result in results}


def test_folders_that_take_files_lack_nothing_and_are_left_empty(tmp_path: Path) -> None:
    found = storage(tmp_path / "new", tmp_path)

    assert found["storage_state"].outcome is OK
    assert found["storage_checkpoints"].outcome in (OK, LACKING)  # LACKING: /tmp in memory
    assert list(tmp_path.iterdir()) == []


def test_checkpoint_folder_that_is_missing_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    missing = storage(tmp_path, tmp_path / "no")["storage_checkpoints"]
    a_file = storage(tmp_path, tmp_path / "file")["storage_checkpoints"]

    assert (missing.outcome, a_file.outcome) == (BROKEN, BROKEN)
    assert "mkdir -p" in missing.mend


def test_line_that_is_copied_into_a_shell_has_a_name_as_one_word(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt; rm -rf $HOME"

    mend = storage(tmp_path, folder)["storage_checkpoints"].mend

    assert shlex.split(mend, comments=True) == ["mkdir", "-p", str(folder)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_folders_that_this_user_may_not_write_or_make() -> None:
    def ask() -> list[str]:
        os.setgid(65534)
        os.setuid(65534)
        look = look_at_checkpoints(Path("/usr"))
        facts = StorageFacts(look_at_state(Path("/var/tmp")), "nobody", look)
        found = judge(STORAGE_CHECKS, facts)[1]
        return [found.outcome.value, found.found]

    outcome, found = call_in_child(ask, 60)

    assert (outcome, "cannot write into /usr: Permission denied" in found) == ("broken", True)


def test_folder_is_tried_by_writing_for_root_may_do_all_but_that() -> None:
    folder = Path("/proc/self/task")  # takes no file, from anybody

    found = storage(Path("/var/tmp"), folder)["storage_checkpoints"]

    assert (found.outcome, "cannot write" in found.found) == (BROKEN, True)


@pytest.mark.parametrize(
    ("kind", "outcome"), [("nfs4", BROKEN), ("fuse.sshfs", BROKEN), ("tmpfs", LACKING)]
)
def test_state_on_a_network_or_in_memory(tmp_path: Path, kind: str, outcome: HostOutcome) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"21 1 0:20 / {tmp_path} rw - {kind} x rw\n")

    facts = StorageFacts(look_at_state(tmp_path, mounts), "me")

    assert judge(STORAGE_CHECKS, facts)[0].outcome is outcome


def test_state_that_the_first_job_will_make_is_judged_by_where_it_will_lie(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"21 1 0:20 / {tmp_path} rw - tmpfs x rw\n")

    in_memory = StorageFacts(look_at_state(tmp_path / "new", mounts), "me")

    assert judge(STORAGE_CHECKS, in_memory)[0].outcome is LACKING
    assert not (tmp_path / "new").exists()


def test_checkpoints_may_lie_on_a_network(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"21 1 0:20 / {tmp_path} rw - nfs4 x rw\n")

    facts = StorageFacts(look_at_state(tmp_path), "me", look_at_checkpoints(tmp_path, mounts))

    assert judge(STORAGE_CHECKS, facts)[1].outcome is OK


# Limits.


def limits(**changes: object) -> dict[str, CheckResult]:
    values: dict[str, object] = {"shm_bytes": 1 << 36, "shm_free_bytes": 1 << 36}
    facts = LimitFacts(**(values | changes))  # type: ignore[arg-type]
    return {result.check: result for result in judge(LIMIT_CHECKS, facts)}


@pytest.mark.parametrize(
    ("changes", "check", "outcome", "mend"),
    [
        ({"shm_bytes": 64 << 20}, "limits_shm", LACKING, "--shm-size"),
        ({"shm_bytes": SHM_BYTES_MIN - 1}, "limits_shm", LACKING, "--ipc=host"),
        ({"shm_bytes": SHM_BYTES_MIN}, "limits_shm", OK, ""),
        ({"shm_bytes": None}, "limits_shm", BROKEN, "mount -t tmpfs"),
        ({"shm_type": "overlay"}, "limits_shm", BROKEN, "mount -t tmpfs"),
        ({"shm_free_bytes": 1 << 20}, "limits_shm_free", BROKEN, "rankmend cleanup"),
        ({"files": 1024, "files_max": 524288}, "limits_files", LACKING, "ulimit -n 524288"),
        ({"files": 1024, "files_max": 1024}, "limits_files", LACKING, "nofile"),
        (
            {"files": 100, "files_max": 100, "files_needed": 264},
            "limits_files",
            BROKEN,
            "LimitNOFILE",
        ),
        ({"processes": 256}, "limits_processes", LACKING, "nproc"),
        ({"processes": 256, "is_root": True}, "limits_processes", NOT_APPLICABLE, ""),
    ],
)
def test_limit(changes: dict[str, object], check: str, outcome: HostOutcome, mend: str) -> None:
    found = limits(**changes)[check]

    assert found.outcome is outcome
    assert mend in found.mend


def test_limits_of_a_process_and_its_shared_memory_are_read() -> None:
    def ask() -> list[str]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        return [result.outcome.value for result in judge(LIMIT_CHECKS, read_limits())]

    before = set(SHARED_MEMORY.iterdir())
    outcomes = call_in_child(ask, 60)

    assert outcomes[2] == "broken"
    assert not [path for path in set(SHARED_MEMORY.iterdir()) - before if path.name[:3] == "tmp"]


def test_shared_memory_that_is_missing_or_no_memory(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text("21 1 0:20 / / rw - ext4 x rw\n")

    missing = judge(LIMIT_CHECKS, read_limits(tmp_path / "shm", mounts))[0]
    on_disk = judge(LIMIT_CHECKS, read_limits(tmp_path, mounts))[0]

    assert (missing.outcome, on_disk.outcome) == (BROKEN, BROKEN)
    assert "ext4" in on_disk.found


# Interpreters.


def program(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def answer(version: str, torch: str = "null", cuda: str = "null") -> str:
    told = f'{{"version": {version}, "torch": {torch}, "cuda": {cuda}, "error": ""}}'
    return f"#!/bin/sh\necho '{told}'\n"


OLD, PLAIN = answer("[3, 7, 2]"), answer("[3, 12, 1]")
CPU_ONLY = answer("[3, 12, 1]", '"2.9.0+cpu"', "false")


@pytest.mark.parametrize(
    ("make", "check", "outcome", "said"),
    [
        (lambda _folder: "/nonexistent/python", "python_ranks", BROKEN, "No such file"),
        (lambda folder: program(folder, OLD), "python_ranks", BROKEN, "3.7.2"),
        (lambda folder: program(folder, "#!/bin/sh\nexit 3\n"), "python_ranks", BROKEN, "code 3"),
        (
            lambda folder: program(folder, "#!/bin/sh\necho hi\n"),
            "python_ranks",
            BROKEN,
            "no Python",
        ),
        (lambda folder: program(folder, PLAIN), "python_torch", LACKING, "pip install torch"),
        (lambda folder: program(folder, CPU_ONLY), "python_torch", LACKING, "without CUDA"),
    ],
)
def test_interpreter_of_the_ranks(
    tmp_path: Path, make: Callable[[Path], str], check: str, outcome: HostOutcome, said: str
) -> None:
    facts = read_python(make(tmp_path), gpus=8, answer_s=60)

    found = {result.check: result for result in judge(PYTHON_CHECKS, facts)}[check]
    assert found.outcome is outcome, found
    assert said in f"{found.found} {found.mend}"


def test_interpreter_that_hangs_is_left(tmp_path: Path) -> None:
    facts = read_python(program(tmp_path, "#!/bin/sh\nexec sleep 600\n"), answer_s=2)

    assert "no answer within 2 s" in facts.ranks_error


def test_files_of_the_working_folder_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json.py", "torch.py", "runpy.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)

    facts = read_python(None, answer_s=60)

    assert facts.ranks_error == ""
    assert not (tmp_path / "ran").exists()


def test_package_that_is_missing_is_named_with_the_line_to_type() -> None:
    facts = PythonFacts(
        "/v/bin/python", ("google_crc32c", "aiohttp"), "/v/bin/python", ranks_version=(3, 11)
    )

    found = judge(PYTHON_CHECKS, facts)[0]

    assert found.outcome is LACKING
    assert found.mend == "/v/bin/python -m pip install aiohttp google-crc32c"


def test_extra_that_is_not_installed_is_named_and_no_fault() -> None:
    facts = PythonFacts("/v/bin/python", ("pynvml", "uvloop"), "/v/bin/python")

    found = judge(PYTHON_CHECKS, facts)[0]

    assert found.outcome is OK
    assert "pip install nvidia-ml-py for agent, check node" in found.found
    assert "pip install uvloop for controller run" in found.found

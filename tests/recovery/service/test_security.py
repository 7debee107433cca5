"""Tokens, certificates, configuration and what `rankmend controller init` makes."""

import base64
import contextlib
import json
import os
import re
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pytest
import urllib3
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from detectors.node.charges import ChargeKind
from rankmend.cli.controller import controller
from rankmend.errors import ConfigError
from rankmend.watched_report import LeftJob, PresentJob, ReportTaken, WatchedReport
from recovery.api.controller_errors import RefusedError, UnreachableError
from recovery.journal.witnesses import Witness
from recovery.service import controller_config, template
from recovery.service.daemon import read
from recovery.service.http import authority
from recovery.service.http.access import (
    SUBJECT_HEADER,
    Doorman,
    Rate,
    Rates,
    node_names,
    peer_headers,
    read_peer,
)
from recovery.service.roles import DeniedError, Role, Subject, TooManyError
from recovery.service.tokens import (
    TokenRefusedError,
    Tokens,
    add_token,
    make_token,
    narrowed,
    read_tokens,
    revoke_token,
)
from tests.support.cluster_desk import FINDING, blame
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.service import FullClient, Running, join_of, make_folder, running

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
NOW = datetime(2026, 11, 21, tzinfo=timezone.utc)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    path.write_text("# ours\n")
    path.chmod(0o600)
    return path


# Tokens.


def test_token_is_known_by_its_hash_alone(token_file: Path) -> None:
    text, entry = make_token("alice", [Role.LAUNCH, Role.READ], nodes=["n*"], jobs=["train-*"])
    add_token(token_file, entry)

    subject = Tokens(read_tokens(token_file)).find(text, NOW)

    assert (subject.name, subject.roles) == ("alice", {Role.LAUNCH, Role.READ})
    assert (subject.may_use_node("n7"), subject.may_use_node("m7")) == (True, False)
    assert (subject.may_use_job("train-1"), subject.may_use_job("eval")) == (True, False)
    assert text.rpartition("_")[2] not in token_file.read_text()


def test_token_with_one_character_changed_is_refused_and_not_repeated() -> None:
    text, entry = make_token("alice", [Role.READ])
    other = text[:-1] + ("0" if text[-1] != "0" else "1")

    for wrong in (other, text.upper(), text + "0", "", "rm_", "x" * 10_000):
        with pytest.raises(TokenRefusedError) as refused:
            Tokens([entry]).find(wrong, NOW)
        assert len(wrong) < 20 or wrong[-20:] not in str(refused.value)


def test_token_ends_at_its_expiry() -> None:
    text, entry = make_token("alice", [Role.READ], expires=NOW)

    assert Tokens([entry]).find(text, NOW - timedelta(seconds=1)).name == "alice"
    with pytest.raises(TokenRefusedError, match="expired"):
        Tokens([entry]).find(text, NOW)


def test_subjects_who_may_launch_are_those_with_such_a_token_in_force() -> None:
    tokens = Tokens(
        make_token(name, roles, expires=expires)[1]
        for name, roles, expires in [
            ("alice", [Role.LAUNCH, Role.READ], None),
            ("alice", [Role.LAUNCH], NOW + timedelta(days=1)),
            ("bob", [Role.LAUNCH], NOW),
            ("grafana", [Role.FLEET_READ], None),
        ]
    )

    assert tokens.launchers(NOW) == {"alice"}
    assert tokens.launchers(NOW - timedelta(seconds=1)) == {"alice", "bob"}


def test_revoked_token_is_gone_and_all_else_in_the_file_stays(token_file: Path) -> None:
    first_text, first = make_token("alice", [Role.READ], comment='says "hello" \\ ü')
    second_text, second = make_token("bob", [Role.ACT], expires=NOW + timedelta(days=1))
    add_token(token_file, first)
    add_token(token_file, second)

    revoke_token(token_file, first.id)

    tokens = Tokens(read_tokens(token_file))
    assert tokens.find(second_text, NOW).name == "bob"
    with pytest.raises(TokenRefusedError):
        tokens.find(first_text, NOW)
    assert token_file.read_text().startswith("# ours\n")
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="no token"):
        revoke_token(token_file, first.id)


OLDER_FILE = """\
# ours, made by an older release

[[token]]
id = "0000000a"
sha256 = "{hash}"
subject = "alice"
roles = ["launch"]

[[token]]
id = "0000000b"
sha256 = "{hash}"
subject = "alice"
roles = [
    "read",
]
comment = "her laptop"

[[token]]
id = "0000000c"
sha256 = "{hash}"
subject = "prometheus"
roles = ["read"] # scrapes /metrics

[[token]]
id = "0000000d"
sha256 = "{hash}"
subject = "admin"
roles = ["launch", "alert", "read", "act"]

[[token]]
id = "0000000e"
sha256 = "{hash}"
subject = "bob"
roles = ["launch", "read"]
jobs = ["bob-*"]
""".replace("{hash}", "0" * 64)
ROLES_NOW = {
    "0000000a": [Role.LAUNCH],
    "0000000b": [Role.READ],
    "0000000c": [Role.READ, Role.FLEET_READ],
    "0000000d": [Role.LAUNCH, Role.ALERT, Role.READ, Role.ACT, Role.FLEET_READ],
    "0000000e": [Role.LAUNCH, Role.READ],
}


def roles_of(token_file: Path) -> dict[str, list[Role]]:
    return {entry.id: entry.roles for entry in read_tokens(token_file)}


def test_tokens_of_an_earlier_version_see_all_jobs_only_if_their_subject_starts_none_or_acts(
    token_file: Path,
) -> None:
    token_file.write_text(OLDER_FILE)

    assert roles_of(token_file) == ROLES_NOW
    assert [entry.id for entry in narrowed(token_file)] == ["0000000b", "0000000e"]


def test_the_next_change_of_an_older_file_writes_the_roles_in_force_into_it(
    token_file: Path,
) -> None:
    token_file.write_text(OLDER_FILE)
    _text, entry = make_token("carol", [Role.READ])

    add_token(token_file, entry)

    assert roles_of(token_file) == {**ROLES_NOW, entry.id: [Role.READ]}
    assert narrowed(token_file) == []
    text = token_file.read_text()
    assert text.startswith("# ours, made by an older release\nformat = 2\n")
    assert 'roles = ["read", "fleet-read"] # scrapes /metrics' in text

    revoke_token(token_file, "0000000a")  # alice launches no more, and gains nothing by that

    assert roles_of(token_file)["0000000b"] == [Role.READ]


def test_revoking_a_token_of_an_older_file_widens_no_other(token_file: Path) -> None:
    token_file.write_text(OLDER_FILE)

    revoke_token(token_file, "0000000a")

    assert roles_of(token_file)["0000000b"] == [Role.READ]


def test_an_older_file_that_can_not_be_converted_stays_as_it_is(token_file: Path) -> None:
    text = OLDER_FILE + 'comment = "[[token]]"\n'
    token_file.write_text(text)

    with pytest.raises(ConfigError, match="format = 2"):
        add_token(token_file, make_token("carol", [Role.READ])[1])

    assert token_file.read_text() == text


def test_a_file_of_a_later_format_is_refused(token_file: Path) -> None:
    token_file.write_text("format = 3\n")

    with pytest.raises(ConfigError, match="format"):
        read_tokens(token_file)


@pytest.mark.parametrize(
    ("roles", "seen"),
    [
        ({Role.READ}, {Role.READ}),
        ({Role.FLEET_READ}, {Role.READ, Role.FLEET_READ}),
        ({Role.LAUNCH, Role.READ}, {Role.LAUNCH, Role.READ}),
        ({Role.ACT}, {Role.ACT}),
        ({Role.REPORT}, {Role.REPORT}),
    ],
)
def test_another_controller_learns_whether_a_subject_reads_all_jobs(
    roles: set[Role], seen: set[Role]
) -> None:
    told = peer_headers("secret", Subject("ann", frozenset(roles), ("n*",)), "there")

    subject = read_peer("secret", told["Authorization"], told[SUBJECT_HEADER])

    assert (subject.name, subject.roles, subject.nodes) == ("ann", seen, ("n*",))


def test_an_older_controller_has_asked_for_who_may_read_all_jobs_there() -> None:
    older = {"name": "ann", "roles": ["read"], "nodes": [], "jobs": [], "how": "", "via": "x"}
    header = base64.urlsafe_b64encode(json.dumps(older).encode()).decode()

    subject = read_peer("secret", "Rankmend-Peer secret", header)

    assert subject.roles == {Role.READ, Role.FLEET_READ}


def test_an_older_controller_is_sent_no_role_that_it_does_not_know() -> None:
    told = peer_headers("secret", Subject("ann", frozenset({Role.FLEET_READ})), "here")

    sent = json.loads(base64.urlsafe_b64decode(told[SUBJECT_HEADER]))

    assert (sent["roles"], sent["reads"]) == (["read"], "fleet")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ('[[token]]\nid = "00000000"\n', "sha256"),
        ("[[token]]\ncolour = 1\n", "colour"),
        ('[[token]]\nid = "xyz"\n', "id"),
        ("token = 3\n", "token"),
        ("[[token\n", "token"),
    ],
)
def test_token_file_that_is_wrong_is_named_with_the_key(
    token_file: Path, body: str, named: str
) -> None:
    token_file.write_text(body)

    with pytest.raises(ConfigError, match=named):
        read_tokens(token_file)


def test_token_file_that_others_can_read_is_refused(token_file: Path) -> None:
    token_file.chmod(0o640)

    with pytest.raises(ConfigError, match="chmod 600"):
        read_tokens(token_file)


def test_token_can_not_have_the_role_of_a_nodes_certificate() -> None:
    with pytest.raises(ConfigError, match="node-cert"):
        make_token("agent", [Role.REPORT])


@given(st.text(max_size=300))
def test_no_text_is_taken_for_a_token_by_chance(text: str) -> None:
    with pytest.raises(TokenRefusedError):
        Tokens([make_token("a", [Role.READ])[1]]).find(text, NOW)


# Who speaks.


def test_certificate_proves_its_names_and_their_first_labels() -> None:
    full = {"subjectAltName": (("DNS", "gpu-1.cluster.example"), ("IP Address", "10.0.0.1"))}
    common = {"subject": ((("commonName", "gpu-2"),),)}
    pattern = {"subjectAltName": (("DNS", "*.cluster.example"),)}

    assert node_names(full) == ("gpu-1", "gpu-1.cluster.example")
    assert node_names(common) == ("gpu-2",)
    assert node_names(pattern) == ()


def test_nobody_is_let_in_without_a_token_where_there_are_tokens() -> None:
    for header in (None, "Basic YTpi", "Bearer", "Bearer nonsense"):
        with pytest.raises(DeniedError) as denied:
            Doorman(Tokens()).identify(header, None, NOW)
        assert denied.value.status == 401


def test_bucket_empties_and_fills_again_at_its_rate() -> None:
    rates, rate = Rates(), Rate(per_s=2.0, burst=3.0)
    for _ in range(3):
        rates.spend("acts", "alice", rate, 100.0)

    with pytest.raises(TooManyError) as refused:
        rates.spend("acts", "alice", rate, 100.0)
    rates.spend("acts", "bob", rate, 100.0)
    rates.spend("acts", "alice", rate, 100.5)

    assert refused.value.retry_after_s == 0.5


# Configuration.


def test_shipped_configuration_is_what_init_writes_with_its_defaults(tmp_path: Path) -> None:
    shipped = ROOT / "deploy/controller.toml"

    loaded = controller_config.load(shipped)

    default = controller_config.Config(state_dir="/var/lib/rankmend-controller")
    assert shipped.read_text() == template.render(
        default.listen, default.state_dir, tokens_file=None, tls=None
    )
    assert loaded == default


def test_shipped_configuration_names_every_key_with_its_default() -> None:
    text = (ROOT / "deploy/controller.toml").read_text()
    switched_on = re.sub(r"(?m)^#(?! )", "", text)
    loaded = msgspec.toml.decode(switched_on, type=controller_config.Config)

    assert loaded.tls is not None
    assert loaded.jobs == controller_config.JobsSection()
    assert loaded.limits == controller_config.Limits()
    assert loaded.tls.client_ca_file is not None
    for struct in (
        controller_config.Config,
        controller_config.Tls,
        controller_config.JobsSection,
        controller_config.Limits,
        controller_config.Discovery,
        controller_config.BmcRule,
    ):
        for name in struct.__struct_fields__:
            assert re.search(rf"(?m)^#?\[{{0,2}}(?:\w+\.)?{name}\b", text), name


def test_port_that_is_taken_is_named_and_the_controller_ends(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        path = tmp_path / "controller.toml"
        path.write_text(f'listen = "{address}"\nstate_dir = "{tmp_path}/state"\n')

        command = [sys.executable, "-m", "rankmend.cli", "controller", "run", "--config", path]
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )

    assert run.returncode == 1
    assert f"rankmend: cannot listen on {address}: Address already in use" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("listen", [":9477", "0.0.0.0:9477", "[::]:9477", "controller:9477"])
def test_open_to_the_network_without_tls_and_tokens_is_refused_with_the_way_out(
    tmp_path: Path, listen: str
) -> None:
    path = tmp_path / "controller.toml"
    path.write_text(f'listen = "{listen}"\nstate_dir = "/var/lib/x"\n')

    with pytest.raises(ConfigError, match="rankmend controller init DIR --host NAME") as refused:
        controller_config.load(path)
    assert "[tls] and tokens_file" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('state_dir = "/x"\ncolour = 1\n', "colour"),
        ('state_dir = "x"\n', "absolute"),
        ('listen = "here"\nstate_dir = "/x"\n', "HOST:PORT"),
        ('state_dir = "/x"\n[limits]\nconnections = 0\n', "connections"),
        ('state_dir = "/x"\nredirect_to = "ftp://a"\n', "ftp"),
        ('state_dir = "/x"\nredirect_to = "http://a"\n', "https only"),
        ("", "state_dir"),
    ],
)
def test_configuration_that_is_wrong_is_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "controller.toml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=named):
        controller_config.load(path)


# init, and the files it makes.


def test_init_writes_over_nothing_and_keeps_secrets_to_itself(tmp_path: Path) -> None:
    made = make_folder(tmp_path / "files").parent

    again = CliRunner().invoke(controller, ["init", str(made), "--host", "other"])

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made.iterdir()}
    assert again.exit_code == 1
    assert "init does not overwrite" in again.output
    secret = ("ca.key", "server.key", "tokens.toml", "admin.token", "launch.token")
    assert {modes[name] for name in secret} == {0o600}
    subjects = {entry.subject: entry.roles for entry in read_tokens(made / "tokens.toml")}
    assert subjects == {
        "admin": [Role.LAUNCH, Role.ALERT, Role.READ, Role.FLEET_READ, Role.ACT],
        "launch": [Role.LAUNCH],
    }


def test_certificate_can_be_made_anew_and_its_end_is_a_metric(tmp_path: Path) -> None:
    folder, new = tmp_path / "files", tmp_path / "new"
    make_folder(folder)
    asked = ["server-cert", "--host", "127.0.0.1", "--dir", str(folder), "--output", str(new)]

    made = CliRunner().invoke(controller, asked)
    again = CliRunner().invoke(controller, asked)

    assert (made.exit_code, again.exit_code) == (0, 1)
    assert "init does not overwrite" in again.output
    with running(folder) as up:
        ends = up.service.measures.certificate_s
        at_start = ends._value.get()
        ends.set(0)
        for name in ("server.crt", "server.key"):
            (new / name).replace(folder / name)
        up.thread.reload(*read(folder / "controller.toml"))
        after = ends._value.get()
        assert up.client("admin").jobs() == []  # who trusts the authority notices nothing
    assert 0 < at_start <= after == authority.expires_unix_s(folder / "server.crt")


def test_init_that_fails_leaves_nothing(tmp_path: Path) -> None:
    done = CliRunner().invoke(controller, ["init", str(tmp_path / "x"), "--host", "ü"])

    assert done.exit_code == 1
    assert "host name" in done.output
    assert not (tmp_path / "x").exists()


def test_init_takes_the_place_of_a_packages_configuration_that_nobody_has_changed(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    shipped = (ROOT / "deploy/controller.toml").read_text()
    (folder / "controller.toml").write_text(shipped)
    (folder / "controller.toml.dpkg-dist").write_text("# an older one")
    asked = ["init", str(folder), "--host"]

    failed = CliRunner().invoke(controller, [*asked, "ü"])
    left = sorted(path.name for path in folder.iterdir())
    text = (folder / "controller.toml").read_text()
    made = CliRunner().invoke(controller, [*asked, "localhost"])

    assert (failed.exit_code, left) == (1, ["controller.toml", "controller.toml.dpkg-dist"])
    assert text == shipped
    assert made.exit_code == 0, made.output
    config = controller_config.load(folder / "controller.toml")
    assert config.tokens_file == str(folder / "tokens.toml")


def test_init_leaves_a_configuration_that_somebody_has_changed(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    changed = (ROOT / "deploy/controller.toml").read_text() + "# ours\n"
    (folder / "controller.toml").write_text(changed)

    refused = CliRunner().invoke(controller, ["init", str(folder), "--host", "localhost"])

    assert refused.exit_code == 1
    assert "Move it away, run init" in refused.output
    assert [path.name for path in folder.iterdir()] == ["controller.toml"]
    assert (folder / "controller.toml").read_text() == changed


def test_token_command_adds_lists_and_revokes(token_file: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    where = ["--tokens-file", str(token_file)]
    kept = tmp_path / "bob.token"

    added = run(controller, ["token", "add", "alice", "--role", "read", "--days", "1", *where])
    quiet = run(controller, ["token", "add", "bob", "--role", "act", "--output", str(kept), *where])
    listed = run(controller, ["token", "list", *where])
    ids = [entry.id for entry in read_tokens(token_file)]
    revoked = run(controller, ["token", "revoke", ids[0], *where])

    assert [done.exit_code for done in (added, quiet, listed, revoked)] == [0, 0, 0, 0]
    assert re.search(r"^rm_[0-9a-f]{8}_[0-9a-f]{64}$", added.stdout, re.MULTILINE)
    assert "rm_" not in quiet.output
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "alice" in listed.output
    assert [entry.subject for entry in read_tokens(token_file)] == ["bob"]


def test_authority_signs_no_authority_below_it_and_purposes_are_kept_apart(tmp_path: Path) -> None:
    ca = (tmp_path / "ca.crt", tmp_path / "ca.key")
    authority.make_authority(*ca, "test")
    authority.make_node(ca, tmp_path / "n.crt", tmp_path / "n.key", "gpu-1")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca[0])
    (told,) = context.get_ca_certs()

    assert told["subject"] == ((("commonName", "test"),),)
    with pytest.raises(ConfigError, match="already exists"):
        authority.make_node(ca, tmp_path / "n.crt", tmp_path / "n2.key", "gpu-1")


# Over the wire.


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("secure") / "files"
    make_folder(folder)
    with running(folder) as up:
        yield up


def node_files(up: Running, node: str) -> tuple[Path, Path]:
    files = (up.folder / f"{node}.crt", up.folder / f"{node}.key")
    if not files[0].exists():
        authority.make_node((up.ca, up.folder / "ca.key"), *files, node)
    return files


def test_agent_tells_of_its_own_node_only(up: Running) -> None:
    client = up.client("", certificate=node_files(up, "gpu-1"))
    alert = {"labels": {"alertname": "RankmendGpuLost", "node": "gpu-1"}}

    assert client.post_alerts([alert]).alerts == 1
    for node in ("gpu-2", ""):
        with pytest.raises(RefusedError, match="may not send alerts about node") as refused:
            client.post_alerts([alert, {"labels": {"alertname": "X", "node": node}}])
        assert refused.value.status == 403


def test_only_the_nodes_certificate_says_which_jobs_run_there(up: Running) -> None:
    job = up.client().join(join_of("gpu-1", key="job:present", name="present")).job_id
    present = (PresentJob(job_id=job, uid=1001, user="launcher"),)
    secret, entry = make_token("alertmanager", [Role.ALERT])
    add_token(up.folder / "tokens.toml", entry)
    (up.folder / "alertmanager.token").write_text(f"{secret}\n")
    (up.folder / "alertmanager.token").chmod(0o600)
    up.thread.reload(*read(up.folder / "controller.toml"))
    by_token = up.client("alertmanager")
    by_node = up.client("", certificate=node_files(up, "gpu-1"))

    def say(client: FullClient, node: str) -> bool:
        report = WatchedReport(node=node, present=present)
        client.ask("POST", "/v1/watched", ReportTaken, report)
        return up.service.worker.desk.is_seen_by_agent(node, job)

    assert not say(by_token, "gpu-1")
    with pytest.raises(RefusedError):
        say(by_node, "gpu-2")
    assert say(by_node, "gpu-1")
    assert Witness.AGENT in up.service.worker.desk.witnesses_of("gpu-1", job)
    assert up.service.worker.desk.witnesses_of("gpu-2", job) == frozenset()


def test_report_of_a_nodes_agent_confirms_what_a_controller_had_taken_over_without_it(
    up: Running,
) -> None:
    job = up.client().join(join_of("gpu-1", key="job:later", name="later")).job_id
    desk = up.service.worker.desk
    for node in ("gpu-1", "gpu-2"):
        up.service.worker.call(
            lambda node=node: blame(desk, node, job, f"inc-{node}", FINDING, ChargeKind.DEVICE)
        ).result(60)
    before = desk.ledger.past("gpu-1").blames[0].witness

    present = (PresentJob(job_id=job, uid=1001, user="launcher"),)
    report = WatchedReport(node="gpu-1", present=present)
    up.client("", certificate=node_files(up, "gpu-1")).ask(
        "POST", "/v1/watched", ReportTaken, report
    )

    assert (before, desk.ledger.past("gpu-1").blames[0].witness) == (
        Witness.LAUNCHER,
        Witness.AGENT,
    )

    # The job has left this one, and controller and agent have restarted since.
    gone = LeftJob(job_id=job, uid=1001, user="launcher", age_s=120.0)
    up.client("", certificate=node_files(up, "gpu-2")).ask(
        "POST", "/v1/watched", ReportTaken, WatchedReport(node="gpu-2", left=(gone,))
    )
    assert desk.ledger.past("gpu-2").blames[0].witness is Witness.AGENT


def test_end_of_a_nodes_certificate_is_a_metric_once_it_is_near(up: Running) -> None:
    measures, day_s = up.service.measures, 86_400.0
    up.client("", certificate=node_files(up, "gpu-1")).post_alerts([])

    def shown() -> list[float]:
        family = "rankmend_controller_node_certificate_expiry_timestamp_seconds"
        value = measures.registry.get_sample_value(family, {"subject": "node:gpu-1"})
        return [] if value is None else [value]

    far = shown()
    measures.note_node_certificate("node:gpu-1", 30 * day_s, 0.0)
    near = shown()
    measures.note_node_certificate("node:gpu-1", 825 * day_s, 0.0)  # made anew

    assert (far, near, shown()) == ([], [30 * day_s], [])


def test_certificate_of_a_node_opens_nothing_else(up: Running) -> None:
    client = up.client("", certificate=node_files(up, "gpu-1"))

    for ask in (client.jobs, client.cluster, lambda: client.pause("x")):
        with pytest.raises(RefusedError, match="does not have the role"):
            ask()


def test_certificate_of_the_server_is_none_of_a_node(up: Running) -> None:
    client = up.client("", certificate=(up.folder / "server.crt", up.folder / "server.key"))

    with pytest.raises((RefusedError, UnreachableError)):
        client.post_alerts([{"labels": {"alertname": "X", "node": "localhost"}}])


def test_certificate_of_a_strangers_authority_is_refused(up: Running, tmp_path: Path) -> None:
    make_folder(tmp_path / "stranger")
    stranger = (tmp_path / "stranger/ca.crt", tmp_path / "stranger/ca.key")
    authority.make_node(stranger, tmp_path / "n.crt", tmp_path / "n.key", "gpu-1")
    client = up.client("", certificate=(tmp_path / "n.crt", tmp_path / "n.key"))

    with pytest.raises(UnreachableError):
        client.post_alerts([{"labels": {"alertname": "X", "node": "gpu-1"}}])


def test_every_act_leaves_a_line_that_says_who_and_with_which_result(up: Running) -> None:
    admin = up.client("admin")
    admin.drain("n5", "audited", is_expected=True)
    with pytest.raises(RefusedError):
        up.client("launch").drain("n6", "not allowed")
    with pytest.raises(RefusedError):
        admin.resume("nothing is paused")

    lines = [
        msgspec.json.decode(line)
        for line in (up.folder / "state/audit.jsonl").read_text().splitlines()
    ]
    told = [(line["who"], line["what"], line["result"]) for line in lines]
    assert ("admin", "POST /v1/nodes/n5/drain", "200 OK") in told
    assert ("launch", "POST /v1/nodes/n6/drain", "403 Forbidden") in told
    assert ("admin", "POST /v1/cluster/resume", "409 Conflict") in told
    assert "audited" in {line.get("detail") for line in lines}


def test_no_secret_is_in_state_audit_or_answers(up: Running) -> None:
    secrets = [
        (up.folder / f"{name}.token").read_text().strip().rpartition("_")[2]
        for name in ("admin", "launch")
    ]
    up.client("admin").drain("n5", "again", is_expected=True)

    state = b""
    for base, _folders, names in os.walk(up.folder / "state"):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # the controller goes on writing
                state += Path(base, name).read_bytes()

    assert state
    assert not any(secret.encode() in state for secret in secrets)


def test_search_for_a_token_is_slowed_down(tmp_path: Path) -> None:
    make_folder(tmp_path / "files")
    with running(tmp_path / "files") as up:
        pool = urllib3.PoolManager(ca_certs=str(up.ca), retries=False)
        wrong = {"Authorization": "Bearer rm_00000000_" + "0" * 64}
        statuses = [
            pool.request("GET", f"{up.url}/v1/jobs", headers=wrong).status for _ in range(130)
        ]
        right = up.client("admin").jobs()
        pool.clear()

    assert set(statuses[:100]) == {401}
    assert 429 in statuses[100:]
    assert right == [], "a token that holds is answered, from the same address"


def test_reload_takes_tokens_and_certificate_and_open_connections_stay(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    make_folder(folder)
    with running(folder) as up:
        old = up.client("admin")
        old.jobs()
        text, entry = make_token("new", [Role.FLEET_READ])
        add_token(folder / "tokens.toml", entry)
        for name in ("server.crt", "server.key"):
            (folder / name).unlink()
        authority.make_authority(folder / "ca2.crt", folder / "ca2.key", "second")
        ca = (folder / "ca2.crt", folder / "ca2.key")
        authority.make_server(ca, folder / "server.crt", folder / "server.key", ["127.0.0.1"])
        up.thread.reload(*read(folder / "controller.toml"))

        old.jobs()
        fresh = up.client("", token=text, ca_file=ca[0])
        assert fresh.jobs() == []
        with pytest.raises(UnreachableError):
            up.client("admin").jobs()  # which trusts the first authority only


def test_connections_beyond_the_bound_are_refused_and_others_served(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    make_folder(folder)

    def few(one: controller_config.Config) -> controller_config.Config:
        limits = msgspec.structs.replace(one.limits, connections=3)
        return msgspec.structs.replace(one, limits=limits)

    with running(folder, few) as up:
        held = [up.client("admin") for _ in range(2)]
        for client in held:
            client.jobs()
        up.client("admin").jobs()
        with pytest.raises(UnreachableError):
            up.client("admin").jobs()
        for client in held:
            client.close()

        def is_served() -> bool:
            try:
                up.client("admin").jobs()
            except UnreachableError:
                return False
            return True

        eventually(is_served, "room for another connection")

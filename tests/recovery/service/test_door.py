"""What another user, a launcher or a script's slip must not be able to do: names that collide, folders in the way, times that are none."""

import os
import stat
import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from hypothesis import given
from hypothesis import strategies as st

from rankmend.cli import output, reader, status_view
from rankmend.cli.options import local_time
from rankmend.errors import ConfigError, JournalError
from rankmend.own_folder import own_folder
from recovery.api import wire
from recovery.api.controller_errors import RefusedError
from recovery.cluster.cluster import WINDOW_S_MAX
from recovery.cluster.cluster_limits import ClusterPolicy
from recovery.journal.cluster_records import WindowAdded
from recovery.journal.job_folder import default_state_folder
from recovery.launcher.ranks.runtime_folder import RuntimeFolder
from recovery.service import authority
from recovery.service.daemon import read
from recovery.service.job_store import StoredJob
from tests.recovery.cluster.test_verdict import NOW, make_desk
from tests.recovery.service.test_cluster_api import fail_rank
from tests.recovery.service.test_permissions import OWN
from tests.support.service import Speaker, join_of, make_folder, running, wait_until
from tests.test_layers import ROOT

# Folders in shared memory.

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root makes another user's folder")


@needs_root
@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_another_users_file_in_the_place_of_ours_blocks_nobody(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    squatted = tmp_path / f"rankmend-{os.getuid()}"
    if kind == "folder":
        squatted.mkdir()
    elif kind == "file":
        squatted.touch()
    else:
        squatted.symlink_to(tmp_path)
    os.chown(squatted, 65534, 65534, follow_symlinks=False)
    decoy = tmp_path / f"rankmend-{os.getuid()}-0decoy"  # a guess, which sorts first
    decoy.mkdir()
    os.chown(decoy, 65534, 65534)

    first, again = own_folder(tmp_path), own_folder(tmp_path)

    assert first == again, "later launchers find what earlier ones left"
    assert first not in (squatted, decoy)
    assert first.stat().st_uid == os.getuid()
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    (told,) = [one for one in caplog.records if "another user's file" in one.message]
    assert (told.by, told.folder) == ("uid 65534", str(first))  # type: ignore[attr-defined]


@needs_root
def test_state_beside_a_home_on_the_network_is_blocked_by_nobody(tmp_path: Path) -> None:
    def refuse(path: Path) -> None:
        raise JournalError(f"{path} is on NFS")

    free = default_state_folder({}, refuse, tmp_path)
    free.mkdir()
    os.chown(free, 65534, 65534)

    own = default_state_folder({}, refuse, tmp_path)

    assert own == default_state_folder({}, refuse, tmp_path) != free
    assert own.stat().st_uid == os.getuid()


def test_the_plain_folder_is_ours_where_nobody_stands_in_the_way(tmp_path: Path) -> None:
    runtime = RuntimeFolder(tmp_path, uuid.UUID(int=1))

    assert runtime.path.parent == tmp_path / f"rankmend-{os.getuid()}"
    assert stat.S_IMODE(runtime.path.parent.stat().st_mode) == 0o700


# Ids of incidents.


@pytest.mark.real
def test_no_launcher_can_choose_a_uuid_that_gives_two_incidents_one_id(tmp_path: Path) -> None:
    make_folder(tmp_path / "files")
    with running(tmp_path / "files") as up:
        client = up.client()
        first = client.join(join_of("n1", name=OWN, key="a")).job_id
        chosen = f"{first[:8]}-0000-4000-8000-000000000001"
        second = client.join(join_of("x1", name="other", key="b", job_id=chosen)).job_id
        assert second == chosen
        prefixes = {
            job_id: one.incident_prefix for job_id, one in up.service.worker.jobs.known.items()
        }

    assert prefixes[first] == first[:8]
    assert prefixes[second] != first[:8]
    with running(tmp_path / "files") as up:
        known = up.service.worker.jobs.known
        assert {job_id: one.incident_prefix for job_id, one in known.items()} == prefixes
        settings = up.service.worker.jobs.running[second].settings
        assert settings.incident_id(7) == f"{prefixes[second]}-7"


@pytest.mark.real
def test_incident_of_a_job_with_a_chosen_uuid_is_found_by_its_id(tmp_path: Path) -> None:
    make_folder(tmp_path / "files")
    with running(tmp_path / "files") as up:
        client, admin = up.client(), up.client("admin")
        first = client.join(join_of("n1", name="first", key="a")).job_id
        chosen = f"{first[:8]}-0000-4000-8000-000000000001"
        speakers = []
        for node in ("x1", "x2"):
            joined = client.join(join_of(node, name="second", key="b", job_id=chosen))
            speakers.append(Speaker(client, node, joined.job_id))
            speakers[-1].say()
        for speaker in speakers:
            assert speaker.ask() is not None
            speaker.obey()
        fail_rank(speakers[0])
        wait_until(lambda: bool(admin.incidents(chosen)), "an incident")
        (incident,) = admin.incidents(chosen)

        assert not incident.incident_id.startswith(f"{first[:8]}-")
        assert admin.story(incident.incident_id).job_id == chosen
        with pytest.raises(RefusedError, match="no incident"):
            admin.story(f"{first[:8]}-1")


# Certificates.


def out_of_date(folder: Path, *, begins_in_days: float, lasts_days: float) -> None:
    """Replace the server's certificate by one with other dates, of the same key and authority."""
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    old = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    begins = datetime.now(timezone.utc) + timedelta(days=begins_in_days)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(days=lasts_days))
    )
    made = builder.sign(key, hashes.SHA256())  # type: ignore[arg-type]
    (folder / "server.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))


@pytest.mark.real
@pytest.mark.parametrize(
    ("begins_in_days", "said"), [(-2.0, "expired at"), (2.0, "not valid before")]
)
def test_reload_refuses_a_certificate_that_does_not_hold_now_and_keeps_the_old(
    tmp_path: Path, begins_in_days: float, said: str
) -> None:
    folder = tmp_path / "files"
    make_folder(folder)
    with running(folder) as up:
        before = up.service.measures.certificate_s._value.get()
        out_of_date(folder, begins_in_days=begins_in_days, lasts_days=1.0)

        with pytest.raises(ConfigError, match=rf"server.crt .*{said}"):
            up.thread.reload(*read(folder / "controller.toml"))

        assert up.client("admin").jobs() == []  # a new connection, by the old certificate
        assert up.service.measures.certificate_s._value.get() == before


@pytest.mark.real
def test_certificate_that_ran_out_in_force_keeps_no_token_from_being_revoked(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "files"
    make_folder(folder)
    out_of_date(folder, begins_in_days=-2.0, lasts_days=1.0)
    with running(folder) as up:
        up.thread.reload(*read(folder / "controller.toml"))


def test_authority_of_which_one_certificate_holds_is_enough(tmp_path: Path) -> None:
    ca = (tmp_path / "ca.crt", tmp_path / "ca.key")
    authority.make_authority(*ca, "x")
    late_s = (datetime.now(timezone.utc) + timedelta(days=4000)).timestamp()

    authority.refuse_out_of_date(str(ca[0]), str(ca[0]), datetime.now(timezone.utc).timestamp())
    with pytest.raises(ConfigError, match="expired"):
        authority.refuse_out_of_date(str(ca[0]), None, late_s)


# Windows, and what is printed of odd times.


@pytest.mark.parametrize(
    ("from_s", "until_s", "said"),
    [
        (NOW * 1000, NOW * 1000 + 7_200_000, "seems to be milliseconds"),
        (NOW, NOW * 1000, "until_unix_s is .* milliseconds"),
        (0.0, NOW + 60.0, "from_unix_s is 0, more than 3653 days from now"),
        (1e14, 1e14 + 60, "seconds since 1970"),
    ],
)
def test_window_in_no_year_of_ours_is_refused_with_the_likely_slip(
    from_s: float, until_s: float, said: str
) -> None:
    desk, journal, _clock = make_desk(ClusterPolicy())

    with pytest.raises(ConfigError, match=said):
        desk.add_window(WindowAdded("w1", ("n1",), from_s, until_s, "ops", ""))
    assert journal.entries == []


def test_window_of_the_longest_kind_is_still_one() -> None:
    desk, _journal, _clock = make_desk(ClusterPolicy())

    desk.add_window(WindowAdded("w1", ("n1",), NOW, NOW + WINDOW_S_MAX, "ops", ""))

    assert set(desk.ledger.windows) == {"w1"}


@given(st.floats())
def test_every_number_is_some_time_or_said_to_be_none(unix_s: float) -> None:
    assert local_time(unix_s, "%Y-%m-%d %H:%M")


ODD = st.floats() | st.sampled_from([1.8e12, -1.0, 1e308, float("nan")])
TEXTS = st.text(max_size=20)


@given(
    windows=st.lists(st.builds(wire.WindowView, TEXTS, st.lists(TEXTS, max_size=3), ODD, ODD, TEXTS, TEXTS), max_size=3),
    held=st.lists(st.builds(wire.HoldView, TEXTS, TEXTS, TEXTS, TEXTS, st.none() | ODD), max_size=3),
    nodes=st.lists(
        st.builds(
            wire.NodeView, TEXTS, TEXTS, st.none() | ODD, st.integers(),
            st.lists(st.integers(), max_size=4), st.booleans(), TEXTS, st.none() | TEXTS,
        ),
        max_size=3,
    ),
    plans=st.lists(st.builds(wire.PlanView), max_size=2),
    jobs=st.lists(st.builds(wire.JobView), max_size=2),
)  # fmt: skip
def test_no_stored_data_keeps_status_from_being_shown(
    windows: list[wire.WindowView],
    held: list[wire.HoldView],
    nodes: list[wire.NodeView],
    plans: list[wire.PlanView],
    jobs: list[wire.JobView],
) -> None:
    cluster = wire.Cluster([], held, windows, [])
    picture = reader.Picture("https://c", jobs, nodes, plans, cluster)
    wanted = reader.Wanted(None, with_ended=False, every_node=True)
    console = output.console(is_wide=True)

    with console.capture() as shown:
        console.print(status_view.render(picture, wanted))

    assert "https://c" in shown.get()
    assert status_view._lines(picture)


def test_documents_make_a_token_for_each_user_first() -> None:
    text = (ROOT / "docs/operate/controller.md").read_text()

    made, used = text.find("token add alice --role launch"), text.find("--token-file alice.token")
    assert 0 < made < used
    assert "--token-file launch.token" not in text


def test_service_json_of_an_older_controller_has_no_prefix() -> None:
    told = msgspec.to_builtins(StoredJob("o", "s", join_of("n1")))
    del told["incident_prefix"]

    assert msgspec.convert(told, StoredJob).incident_prefix == ""

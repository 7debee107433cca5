"""Ids of incidents, of jobs whose UUID a launcher has chosen among them."""

from pathlib import Path

import msgspec
import pytest

from recovery.api.controller_errors import RefusedError
from recovery.service.jobs.job_store import StoredJob
from tests.support.eventually import eventually
from tests.support.service import Speaker, join_of, make_folder, running
from tests.support.service_bench import fail_rank

pytestmark = pytest.mark.process


def test_no_launcher_can_choose_a_uuid_that_gives_two_incidents_one_id(tmp_path: Path) -> None:
    make_folder(tmp_path / "files")
    with running(tmp_path / "files") as up:
        client = up.client()
        first = client.join(join_of("n1", name="llama", key="a")).job_id
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
            speaker.wait_order()
            speaker.obey()
        fail_rank(speakers[0])
        eventually(lambda: bool(admin.incidents(chosen)), "an incident")
        (incident,) = admin.incidents(chosen)

        assert not incident.incident_id.startswith(f"{first[:8]}-")
        assert admin.story(incident.incident_id).job_id == chosen
        with pytest.raises(RefusedError, match="no incident"):
            admin.story(f"{first[:8]}-1")


def test_service_json_of_an_older_controller_has_no_prefix() -> None:
    told = msgspec.to_builtins(StoredJob("o", "s", join_of("n1")))
    del told["incident_prefix"]

    assert msgspec.convert(told, StoredJob).incident_prefix == ""

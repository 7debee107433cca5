"""The figures of a one-node job's checkpoints on their way from its launcher to the agent's page."""

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.collectors.ranks import RanksCollector
from agent.ranks.launcher_socket import RankSocket
from agent.ranks.table import RankTable
from rankmend.agent_socket import OfferedRank, ShownCheckpoint, decode
from rankmend.checkpoint_figures import CheckpointFigures, encode_figures
from rankmend.errors import SourceError
from rankmend.rank_values import Unsaved
from recovery.launcher.agent_link import AgentLink
from tests.support.agent import (
    JOB_ID,
    PATIENT,
    FakeClock,
    checked,
    make_progress_file,
    tmpfs_folder,
    values_of,
)
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = pytest.mark.process

FIGURES = CheckpointFigures(
    at_s=900.0,
    interval_s=600.0,
    best_interval_s=300.0,
    stall_s=2.0,
    save_s=30.0,
    write_bytes_per_s=1e9,
    read_bytes_per_s=2e9,
    stalls_ratio=0.01,
    recomputed_ratio=0.02,
    restarts_ratio=0.03,
    snapshot_at_s=990.0,
    snapshot_held_bytes=8e9,
    snapshot_stall_s=0.05,
    snapshot_interval_s=5.0,
    snapshot_best_interval_s=40.0,
    unsaved_at_s=800.0,
    unsaved=Unsaved.NONE_NEWER,
)
KNOWN = st.none() | st.floats(0, 1e18)


@pytest.fixture
def shm() -> Iterator[Path]:
    with tmpfs_folder() as folder:
        yield folder


@PATIENT
@given(
    st.builds(
        CheckpointFigures,
        st.just(900.0),
        *[KNOWN] * 9,
        st.none() | st.just(990.0),
        *[KNOWN] * 4,
        st.none() | st.just(800.0),
        st.none() | st.sampled_from(Unsaved),
    )
)
def test_figures_survive_their_message(figures: CheckpointFigures) -> None:
    sent = encode_figures(str(JOB_ID), figures, 1000.0, 1)

    assert decode(sent, 1000.0) == ShownCheckpoint(JOB_ID, figures)


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        {},
        {"age_s": -1},
        {"age_s": True},
        {"age_s": 1e19},
        {"age_s": "1"},
        {"age_s": 1, "interval_s": -1},
        {"age_s": 1, "stall_s": [1]},
        {"age_s": 1, "snapshot_age_s": -1},
        {"snapshot_held_bytes": "8"},
        {"interval_s": 1},
        {"age_s": 1, "save_s": 10**400},
    ],
)
def test_figures_that_are_none_are_refused(told: object) -> None:
    message = {"version": 1, "job_id": str(JOB_ID), "checkpoint": told}

    with pytest.raises(SourceError):
        decode(json.dumps(message).encode())


def test_job_that_has_saved_nothing_tells_of_that() -> None:
    figures = CheckpointFigures(None, unsaved_at_s=10.0, unsaved=Unsaved.NOTHING_FOUND)

    sent = encode_figures(str(JOB_ID), figures, 1000.0, 1)

    assert decode(sent, 1000.0) == ShownCheckpoint(JOB_ID, figures)


def test_job_with_snapshots_and_no_checkpoint_tells_of_these() -> None:
    figures = CheckpointFigures(None, snapshot_at_s=990.0, snapshot_held_bytes=8e9)

    sent = encode_figures(str(JOB_ID), figures, 1000.0, 1)

    assert decode(sent, 1000.0) == ShownCheckpoint(JOB_ID, figures)


@pytest.mark.parametrize(
    ("changes", "is_news"),
    [
        ({}, False),
        ({"at_s": 900.5, "snapshot_at_s": 989.5}, False),
        ({"at_s": 901.0}, True),
        ({"snapshot_at_s": 991.0}, True),
        ({"snapshot_at_s": None}, True),
        ({"at_s": None}, True),
        ({"unsaved_at_s": 800.5}, False),
        ({"unsaved": Unsaved.NONE_VALID}, True),
        ({"snapshot_stall_s": 0.06}, True),
    ],
)
def test_time_that_differs_by_less_than_a_second_is_no_news(
    changes: dict[str, float | Unsaved | None], is_news: bool
) -> None:
    assert replace(FIGURES, **changes).is_news(FIGURES) is is_news


def test_what_is_not_a_number_is_not_sent_and_what_a_newer_launcher_adds_is_ignored() -> None:
    figures = replace(FIGURES, stall_s=float("nan"), save_s=float("inf"))
    message = json.loads(encode_figures(str(JOB_ID), figures, 1000.0, 1))
    message["checkpoint"]["colour"] = "red"
    message["checkpoint"]["unsaved"] = "full_moon"

    told = decode(json.dumps(message).encode(), 1000.0)

    assert told == ShownCheckpoint(
        JOB_ID, replace(FIGURES, stall_s=None, save_s=None, unsaved=None)
    )


def test_agent_shows_the_figures_as_a_controller_does_until_the_launcher_goes(shm: Path) -> None:
    clock = FakeClock()
    table = RankTable()
    rank_socket = RankSocket(shm / "agent.sock", table, clock)
    rank_socket.start()
    try:
        link = AgentLink([rank_socket.path], clock)
        link.show_checkpoint(FIGURES)  # before there are ranks
        link.offer(JOB_ID, "digits", 1, [(OfferedRank(0, 0, 7), make_progress_file(shm))])
        eventually(lambda: bool(table.checkpoints()), "the figures")
        link.withdraw()  # the job is held: its checkpoint grows old
        eventually(lambda: table.read(1000.0, 1) == [], "no rank")
        clock.time_s += 60.0
        values = values_of(checked(RanksCollector(table, clock).collect()))
        link.close()
        eventually(lambda: not table.checkpoints(), "no figures")
    finally:
        rank_socket.stop()

    assert values == {
        f"controller_{name}": value
        for name, value in {
            f"checkpoint_age_seconds{{{JOB_ID}}}": pytest.approx(160.0),
            f"checkpoint_interval_seconds{{{JOB_ID}}}": 600.0,
            f"checkpoint_best_interval_seconds{{{JOB_ID}}}": 300.0,
            f"checkpoint_stall_seconds{{{JOB_ID}}}": 2.0,
            f"checkpoint_save_seconds{{{JOB_ID}}}": 30.0,
            f"checkpoint_write_bytes_per_second{{{JOB_ID}}}": 1e9,
            f"checkpoint_read_bytes_per_second{{{JOB_ID}}}": 2e9,
            f"checkpoint_cost_ratio{{{JOB_ID},stalls}}": 0.01,
            f"checkpoint_cost_ratio{{{JOB_ID},recomputed}}": 0.02,
            f"checkpoint_cost_ratio{{{JOB_ID},restarts}}": 0.03,
            f"unsaved_seconds{{{JOB_ID},none_newer}}": pytest.approx(260.0),
            f"restorable_age_seconds{{{JOB_ID},checkpoint}}": pytest.approx(160.0),
            f"restorable_age_seconds{{{JOB_ID},memory}}": pytest.approx(70.0),
            f"snapshot_held_bytes{{{JOB_ID}}}": 8e9,
            f"snapshot_stall_seconds{{{JOB_ID}}}": 0.05,
            f"snapshot_interval_seconds{{{JOB_ID}}}": 5.0,
            f"snapshot_best_interval_seconds{{{JOB_ID}}}": 40.0,
        }.items()
    }


def test_older_agent_that_knows_no_figures_keeps_the_ranks(shm: Path) -> None:
    clock = FakeClock()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(shm / "agent.sock"))
        listener.listen()
        listener.settimeout(DEADLINE_S)
        link = AgentLink([shm / "agent.sock"], clock)
        link.show_checkpoint(FIGURES)
        link.offer(JOB_ID, "digits", 1, [(OfferedRank(0, 0, 7), make_progress_file(shm))])
        first, _address = listener.accept()
        assert (b"ranks" in first.recv(9999), b"age_s" in first.recv(9999)) == (True, True)
        first.close()

        link.tick()
        clock.time_s += 30.0
        link.tick()

        second, _address = listener.accept()
        second.settimeout(DEADLINE_S)
        assert b"ranks" in second.recv(9999)
        link.show_checkpoint(replace(FIGURES, stall_s=3.0))
        link.withdraw()
        assert decode(second.recv(9999)).ranks == ()  # and no figures before it
        second.close()
        link.close()


def test_figures_of_another_job_than_the_offered_one_are_refused() -> None:
    table = RankTable()
    table.open(1, 0)

    with pytest.raises(SourceError, match="were not offered"):
        table.show_checkpoint(1, ShownCheckpoint(JOB_ID, FIGURES))

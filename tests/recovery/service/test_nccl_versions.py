"""A job whose ranks have loaded two versions of NCCL: what a controller shows, and how it names the start that failed by it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from detectors.failed.said_error import FailureCause, SaidAtEnd, SaidError
from rankmend.cli.screens.network_lines import say_nccl
from recovery.api import wire
from recovery.messages.exchange import RankExit, RankReport
from tests.support.eventually import eventually
from tests.support.service import Running, Speaker, make_folder, running, two_speakers

pytestmark = pytest.mark.process

VERSIONS = {"n1": ("2.27.3",), "n2": ("2.21.5",)}
LINE = (
    "DistBackendError: NCCL error in: NCCLUtils.cpp:77, invalid usage; NCCL says: Mismatched NCCL version "
    "detected : rank 0 version 22703 rank 2 version 22105"
)
MISMATCH = SaidAtEnd(error=SaidError(FailureCause.MIXED_NCCL, "DistBackendError:NCCL error", LINE))


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Running]:
    make_folder(tmp_path)
    with running(tmp_path) as found:
        yield found


def start(speaker: Speaker, versions: tuple[str, ...]) -> tuple[RankReport, ...]:
    order = speaker.order
    assert order is not None
    ranks = tuple(
        RankReport(rank, place, 1000 + rank, "R", attached_age_s=1.0, nccl=versions)
        for place, rank in enumerate(order.ranks)
    )
    speaker.say(revision=order.revision, attempt=order.attempt, ranks=ranks)
    return ranks


def shown(up: Running, job_id: str) -> list[wire.NcclShare]:
    return up.client("admin").job(job_id).job.nccl


def test_ranks_that_differ_are_shown_and_name_the_start_that_failed_by_it(up: Running) -> None:
    speakers = two_speakers(up.client("launch"))
    job_id = speakers[0].job_id
    ranks = {one.node: start(one, VERSIONS[one.node]) for one in speakers}
    eventually(lambda: bool(shown(up, job_id)), "both nodes' versions")
    before = shown(up, job_id)
    ended = RankExit(0.1, 1, None, False, False, None, (), words=MISMATCH)
    for one in speakers:
        one.say(ranks=tuple(replace(r, process_state="", exit=ended) for r in ranks[one.node]))
    admin = up.client("admin")
    eventually(lambda: bool(admin.incidents(job_id)), "the incident")

    assert before == [
        wire.NcclShare("2.21.5", ["n2"], [2, 3]),
        wire.NcclShare("2.27.3", ["n1"], [0, 1]),
    ]
    (line,) = say_nccl(before)
    assert line == (
        "its ranks have loaded 2 versions of NCCL: "
        "2.21.5 in ranks 2 and 3 on 1 node (n2); 2.27.3 in ranks 0 and 1 on 1 node (n1)"
    )
    (incident,) = admin.incidents(job_id)
    assert incident.signature.startswith("mixed_nccl:")
    assert (incident.blame, incident.ranks) == ("program", [])
    told = [line for one in admin.story(job_id).lines for line in (one.text or "", *one.details)]
    said = "\n".join(told)
    assert "NCCL 2.21.5 in ranks 2 and 3 on 1 node (n2)" in said


def test_ranks_that_are_alike_or_tell_none_are_no_mix(up: Running) -> None:
    speakers = two_speakers(up.client("launch"))
    start(speakers[0], ("2.27.3",))
    start(speakers[1], ())

    eventually(lambda: up.client("admin").job(speakers[0].job_id).job.state == "running", "it runs")
    assert shown(up, speakers[0].job_id) == []

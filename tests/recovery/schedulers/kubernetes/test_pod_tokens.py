"""Which pod a launcher's token proves, by the answer of a TokenReview, and how the launcher sends it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankmend.errors import ConfigError
from rankmend.kubernetes_api import KubernetesAwayError
from recovery.api import wire
from recovery.api.launcher_client import LauncherClient, read_pod_token
from recovery.journal.records import Entry
from recovery.journal.slurm_records import PodProved
from recovery.schedulers.kubernetes.answers import PodInKubernetes, ReviewedToken, read_review
from recovery.schedulers.slurm.ledger import SlurmLedger, fold_slurm_entry
from recovery.service.kubernetes_service import (
    CLAIMS_MAX,
    ClaimQueue,
    PodClaim,
    PodReviews,
)
from tests.support.eventually import eventually
from tests.support.service import join_of, make_folder, running

pytestmark = pytest.mark.process

# As kube-apiserver 1.20 answers, without what is not read.
ANSWER: dict[str, Any] = {
    "status": {
        "authenticated": True,
        "audiences": ["rankmend"],
        "user": {
            "username": "system:serviceaccount:train:default",
            "extra": {
                "authentication.kubernetes.io/pod-name": ["train-0"],
                "authentication.kubernetes.io/pod-uid": ["7d1f"],
            },
        },
    }
}


def changed(**status: Any) -> dict[str, Any]:
    return {"status": {**ANSWER["status"], **status}}


def test_a_reviewed_token_names_its_pod_with_namespace_and_uid() -> None:
    assert read_review(ANSWER) == ReviewedToken("train/train-0/7d1f")


@pytest.mark.parametrize(
    ("told", "why_not"),
    [
        ({}, "Kubernetes refuses it: not authenticated"),
        (
            {"status": {"error": "token has expired"}},
            "Kubernetes refuses it: token has expired",
        ),
        (changed(authenticated="true"), "Kubernetes refuses it: not authenticated"),
        (
            changed(audiences=["https://kubernetes.default.svc"]),
            "it is not for the audience rankmend",
        ),
        (changed(audiences=None), "it is not for the audience rankmend"),
        (
            changed(user={"username": "system:serviceaccount:train:default"}),
            "it is bound to no pod",
        ),
        (changed(user={**ANSWER["status"]["user"], "username": "ann"}), "it is bound to no pod"),
        (
            changed(
                user={
                    "username": "system:serviceaccount:train:default",
                    "extra": {
                        "authentication.kubernetes.io/pod-name": ["train-0", "train-1"],
                        "authentication.kubernetes.io/pod-uid": ["7d1f"],
                    },
                }
            ),
            "it is bound to no pod",
        ),
    ],
)
def test_any_other_answer_proves_no_pod(told: dict[str, Any], why_not: str) -> None:
    assert read_review(told) == ReviewedToken("", why_not)


def test_a_file_without_one_token_is_refused_and_its_content_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for text in ("", " \n", "two secret-words", "\u00e9"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError) as refused:
            read_pod_token(path)
        assert "secret-words" not in str(refused.value)
    path.write_text("a.b.c\n")
    assert read_pod_token(path) == "a.b.c"


def test_a_launcher_sends_the_token_that_its_file_has_then_and_the_controller_keeps_it_nowhere(
    tmp_path: Path,
) -> None:
    folder, path = tmp_path / "c", tmp_path / "token"
    make_folder(folder)
    claims: list[PodClaim] = []
    with running(folder) as up:
        up.service.backend.review_pod = claims.append
        client = LauncherClient([up.url], token_file=folder / "launch.token", ca_file=up.ca)
        client.pod_token_file = path
        request = join_of("n1", key="job:pods", name="pods")
        joined = client.join(request)
        for token in ("first.secret.token", "second.secret.token"):
            path.write_text(f"{token}\n")
            client.join(request)
        client.close()

    told = [(one.job_id, one.node, one.owner, one.token) for one in claims]
    assert told == [
        (joined.job_id, "n1", "launch", "first.secret.token"),
        (joined.job_id, "n1", "launch", "second.secret.token"),
    ]
    assert "secret" not in repr(claims[0])
    kept = [one for one in (folder / "state").rglob("*") if one.is_file()]
    assert kept
    assert not any(b".secret." in one.read_bytes() for one in kept)


def test_a_join_of_an_older_launcher_has_no_token() -> None:
    body = msgspec.json.encode(join_of("n1"))
    assert msgspec.json.decode(body, type=wire.JoinRequest).pod_token == ""


class FakeReviewer:
    """The part of `KubernetesClient` that reviews need."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.reviewed: list[str] = []
        self.node = "n1"

    def review_token(self, token: str) -> ReviewedToken:
        self.reviewed.append(token)
        if self.errors:
            raise self.errors.pop(0)
        return ReviewedToken("train/train-0/7d1f")

    def pod(self, reference: str) -> PodInKubernetes | None:
        namespace, name, uid = reference.split("/")
        return PodInKubernetes(namespace, name, uid, self.node, "Running")


def test_reviews_go_on_after_an_error_and_record_what_is_proved() -> None:
    reviewer, proved = FakeReviewer(), list[PodProved]()
    reviewer.errors = [KubernetesAwayError("no answer"), ValueError("a defect")]
    reviews = PodReviews(reviewer, proved.append)  # type: ignore[arg-type]
    reviews.start()

    for token in ("away", "broken", "good"):
        reviews.add(PodClaim("job-1", "n1", f"L-{token}", "ann", token))
    eventually(lambda: bool(proved), "the third is recorded")
    reviews.stop()

    assert reviewer.reviewed == ["away", "broken", "good"]
    assert proved == [PodProved("job-1", "n1", "L-good", "train/train-0/7d1f", "ann")]


def test_claims_that_find_no_room_are_left_out() -> None:
    reviews = PodReviews(FakeReviewer(), lambda _proved: None)  # type: ignore[arg-type]

    for number in range(CLAIMS_MAX + 10):
        reviews.add(PodClaim("job-1", f"n{number}", "L", "ann", "t"))
    reviews.stop()


def test_claims_of_one_subject_and_its_friend_delay_those_of_another_by_a_review_each() -> None:
    waiting = ClaimQueue()

    def put(owner: str, count: int) -> int:
        claims = [PodClaim("job", f"n{number}", "L", owner, "t") for number in range(count)]
        return sum(waiting.put(claim) for claim in claims)

    counts = [put("mallory", 5_000), put("eve", 5_000), put("alice", 2)]
    taken = [claim.owner for _ in range(4) if (claim := waiting.take()) is not None]
    waiting.close()

    assert counts == [2_000, 2_000, 1]
    assert taken == ["mallory", "eve", "alice", "mallory"]
    assert waiting.take() is None


def test_only_the_newest_launcher_of_a_job_on_a_node_has_its_pod_on_record() -> None:
    ledger = SlurmLedger()
    records = [
        PodProved("job-1", "n1", "first", "train/train-0/1", "ann"),
        PodProved("job-1", "n1", "second", "train/train-0/2", "ann"),
        PodProved("job-2", "n1", "other", "train/other-0/3", "bob"),
    ]
    for number, record in enumerate(records, start=1):
        ledger = fold_slurm_entry(ledger, Entry(number, 0.0, 0.0, "boot", record))

    assert ledger.proved_pod("job-1", "n1", "first") == ""
    assert ledger.proved_pod("job-1", "n1", "second") == "train/train-0/2"
    assert ledger.proved_pod("job-1", "n1") == "train/train-0/2"
    assert ledger.proved_pod("job-1", "n2") == ""
    assert not ledger.has_seen("n1", "ann", 0.0), (
        "that pod may be gone: the manager is asked each time"
    )

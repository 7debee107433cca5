"""What a bundle holds, and that planted secrets are in none of its files."""

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmend.clock import SystemClock
from recovery.journal.incident_machine import Event, Outcome
from recovery.journal.incident_records import (
    EvidenceCollected,
    Failure,
    IncidentEvent,
    IncidentOpened,
    SavedEvidence,
)
from recovery.journal.job_records import JobOpened
from recovery.journal.limits import Policy
from recovery.journal.store import Journal
from recovery.local.report.bundle import find_secrets, make_bundle
from recovery.local.report.overview import find_story
from recovery.local.report.scrub import Scrubber, shown_environment
from recovery.service.meeting_secret import Identity
from tests.support.eventually import DEADLINE_S
from tests.support.findings import HUNG

pytestmark = pytest.mark.process

SECRETS = {
    "hf_AbCdEfGhIjKlMnOpQrStUvWx": "token by shape",
    "AKIAIOSFODNN7EXAMPLE": "AWS key id",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY": "value of a variable",
    "correct-horse": "password in a URL",
    "s3cr3t-in-config": "value behind a name",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.abcdefghijk": "JSON web token",
    "mlresearcher": "a user's name in paths",
    "MIIEvQIBADANBgkqhkiG9w0BAQ": "private key",
}
LOG = """\
[rank 0] logging in with hf_AbCdEfGhIjKlMnOpQrStUvWx
[rank 0] s3 key AKIAIOSFODNN7EXAMPLE / wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY
[rank 0] tracking at https://ada:correct-horse@tracker.example:8080/run?id=7
[rank 0] config {'db_password': 's3cr3t-in-config', 'lr': 0.1}
[rank 0] wandb.api_key=s3cr3t-in-config done
[rank 0] curl -H "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.abcdefghijk"
[rank 0] reading /home/mlresearcher/data/shard-7 at step 12
-----BEGIN PRIVATE KEY-----
MIIEvQIBADANBgkqhkiG9w0BAQ
-----END PRIVATE KEY-----
"""
ENVIRONMENT = {
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "HF_TOKEN": "hf_AbCdEfGhIjKlMnOpQrStUvWx",
    "AZURE_STORAGE_KEY": "s3cr3t-in-config",
    "NCCL_DEBUG": "INFO",
    "NCCL_AUTH_TOKEN": "s3cr3t-in-config",
    "EDITOR": "mlresearcher",
    "HOME": "/home/mlresearcher",
}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Make a state folder with one incident, its journal and its evidence."""
    folder = tmp_path / "state" / "jobs" / "digits-1"
    attempt = folder / "incidents" / "job-1" / "attempt-1"
    attempt.mkdir(parents=True)
    (folder / "job.json").write_text(
        json.dumps({"job_id": "job", "name": "digits", "webhook_secret": "s3cr3t-in-config"})
    )
    (attempt / "stderr-rank-0.txt").write_text(LOG)
    frame = b"X\x10\x00\x00\x00/home/mlresearch"
    (attempt / "flight-rank-0.pkl").write_bytes(b"\x80\x02}X\x01\x00\x00\x00a" + frame + b"s.")
    (attempt / "escape.txt").symlink_to("/etc/passwd")
    journal = Journal(folder / "journal.db", SystemClock(), "boot")
    failure = Failure(1, HUNG, 1, 1, None, 12, False, (0, 1))
    saved = SavedEvidence(
        "n1",
        str(attempt),
        2,
        100,
        0.3,
        ("note of https://u:correct-horse@h/",),
        "restart: rank 0: killed: api_key=s3cr3t-in-config",
    )
    journal.append_many(
        [
            JobOpened("job", "digits"),
            IncidentOpened("job-1", failure, 300.0, 12, Policy()),
            IncidentEvent(Event("job-1", Outcome.ACCEPTED, "job-1", "api_key=s3cr3t-in-config")),
            EvidenceCollected("job-1", 1, (saved,), HUNG, "host-stuck", "rank 1 stands", 0.6),
        ]
    )
    journal.close()
    return folder


def unpack(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        members = {member.name: archive.extractfile(member) for member in archive.getmembers()}
        return {name: file.read() for name, file in members.items() if file is not None}


def test_no_planted_secret_is_in_any_file_of_a_bundle(job: Path, tmp_path: Path) -> None:
    folder, entries = find_story(job.parents[1], "job-1")
    assert folder == job

    made = make_bundle(job, entries, tmp_path / "b.tar.gz", ENVIRONMENT, 1e9)

    files = unpack(tmp_path / "b.tar.gz")
    for secret, what in SECRETS.items():
        found = [name for name, body in files.items() if secret.encode() in body]
        assert not found, f"{what} in {found}"
    log = files["evidence/attempt-1/stderr-rank-0.txt"].decode()
    assert "tracker.example:8080/run?id=7" in log, "what is no secret stays"
    assert "'lr': 0.1" in log
    assert "/home/[user]/data/shard-7 at step 12" in log or "~/data/shard-7 at step 12" in log
    shown = json.loads(files["environment.json"])["this shell"]
    assert shown["NCCL_DEBUG"] == "INFO"
    assert shown["EDITOR"] == shown["NCCL_AUTH_TOKEN"] == "[set]"
    assert json.loads(files["evidence/attempt-1/flight-rank-0.json"]) == {"a": "/home/[user]"}
    assert "evidence/attempt-1/escape.txt" not in files, "links are not followed"
    assert (tmp_path / "b.tar.gz").stat().st_mode & 0o777 == 0o600
    assert made.incident_id == "job-1"


@pytest.mark.parametrize(
    "dump",
    [
        b"\x80\x02]q\x00h\x00a.",  # a list that holds itself
        b"\x80\x02]q\x00" + b"(" + b"h\x00" * 8 + b"e.",
        b"\x80\x02]q\x00"
        + b"".join(b"]q%c(%se" % (n, b"h%c" % (n - 1) * 12) for n in range(1, 9))
        + b".",
        # one text of 300,000 characters, a thousand times
        b"\x80\x02](X\xe0\x93\x04\x00" + b"x" * 300_000 + b"q\x00" + b"h\x00" * 1000 + b"e.",
    ],
    ids=["holds itself", "holds itself often", "lists of lists", "one text often"],
)
def test_dump_that_nobody_may_walk_to_its_end_is_left_out_with_the_reason(
    job: Path, tmp_path: Path, dump: bytes
) -> None:
    (evil,) = (job / "incidents").rglob("flight-rank-0.pkl")
    evil.write_bytes(dump)

    _folder, entries = find_story(job.parents[1], "job-1")
    bundle = make_bundle(job, entries, tmp_path / "b.tar.gz", ENVIRONMENT, 1e9)

    assert [line for line in bundle.left_out if "it contains itself, or more than" in line]
    assert "why.txt" in [file.path for file in bundle.files]


def test_the_manifest_holds_the_checksum_of_every_file(job: Path, tmp_path: Path) -> None:
    _folder, entries = find_story(job.parents[1], "job-1")

    make_bundle(job, entries, tmp_path / "b.tar.gz", {}, 1e9)

    files = unpack(tmp_path / "b.tar.gz")
    manifest = json.loads(files.pop("manifest.json"))
    assert {one["path"]: one["sha256"] for one in manifest["files"]} == {
        name: hashlib.sha256(body).hexdigest() for name, body in files.items()
    }
    kinds = [entry["kind"] for entry in json.loads(files["journal.json"])]
    assert kinds == ["incident_opened", "incident_event", "evidence_collected"]
    assert "host-stuck" in files["why.txt"].decode()
    assert "output of the ranks on n1: restart: rank 0: killed" in files["why.txt"].decode()


def test_a_bundle_has_the_verdict_on_the_output_of_each_attempt(job: Path, tmp_path: Path) -> None:
    (attempt,) = (job / "incidents").rglob("attempt-1")
    error = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    frame = '  File "/w/train.py", line 7, in <module>\n    main()'
    (attempt / "stderr-rank-1.txt").write_text(
        f"step 4 loss 0.1\nTraceback (most recent call last):\n{frame}\n{error}\n"
    )
    _folder, entries = find_story(job.parents[1], "job-1")

    make_bundle(job, entries, tmp_path / "b.tar.gz", ENVIRONMENT, 1e9)

    verdict = json.loads(unpack(tmp_path / "b.tar.gz")["log-verdict-attempt-1.json"])
    assert (verdict["decision"], verdict["class"], verdict["culprit_ranks"]) == (
        "restart",
        "device",
        [1],
    )


def test_the_command_packs_an_incident_and_names_one_that_is_unknown(
    job: Path, tmp_path: Path
) -> None:
    def run(incident: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "rankmend.cli", "bundle", incident, "--json"]
        return subprocess.run(
            [*command, f"--state-dir={job.parents[1]}", f"-o{tmp_path / 'c.tar.gz'}"],
            env={**os.environ, **ENVIRONMENT},
            cwd=Path(__file__).resolve().parents[4],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    done, refused = run("job-1"), run("job-9")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["incident_id"] == "job-1"
    assert "manifest.json" in unpack(tmp_path / "c.tar.gz")
    assert refused.returncode == 1
    assert "no incident 'job-9'" in refused.stderr


def test_a_bundle_that_can_not_be_written_leaves_nothing(job: Path, tmp_path: Path) -> None:
    from rankmend.errors import ConfigError

    _folder, entries = find_story(job.parents[1], "job-1")

    with pytest.raises(ConfigError, match="cannot write"):
        make_bundle(job, entries, tmp_path / "none" / "b.tar.gz", {}, 1e9)


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("token: abcdef12", "token: [removed]"),
        ('"client_secret": "a \\"b\\" c", "n": 1', '"client_secret": "[removed]", "n": 1'),
        ("--api-key abcdef12 --lr 3", "--api-key [removed] --lr 3"),
        ("postgres://u:p@db/x", "postgres://[removed]@db/x"),
        ("max_tokens: null, steps=3", "max_tokens: null, steps=3"),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: [removed] [removed]"),
        (
            f"wandb login {'0a' * 20}, commit {'0b' * 20}",
            f"wandb login [removed], commit {'0b' * 20}",
        ),
        ("rank 3 at /root/job/train.py:7", "rank 3 at ~/job/train.py:7"),
        ("/rooted stays", "/rooted stays"),
        ("uuid 6f1c1b52-6a5a-4e43-9a76-1f0b6f2f7a10", "uuid 6f1c1b52-6a5a-4e43-9a76-1f0b6f2f7a10"),
    ],
)
def test_text_is_scrubbed_of_what_it_names_and_no_more(text: str, scrubbed: str) -> None:
    assert Scrubber((), "/root").scrub(text) == scrubbed


@given(st.text(), st.text(alphabet="abcXYZ019+/=!", min_size=6, max_size=60))
def test_a_variables_secret_is_nowhere_left_whatever_stands_around_it(
    text: str, secret: str
) -> None:
    scrubbed = Scrubber(({"MY_TOKEN": secret},)).scrub(f"{text}{secret}{text}")

    assert secret not in scrubbed


@given(st.text(max_size=300))
def test_any_text_is_scrubbed_without_an_error_and_in_one_pass(text: str) -> None:
    scrubber = Scrubber((), "/root")

    assert isinstance(scrubber.scrub(text), str)


def test_names_of_an_environment_stay_and_values_only_of_the_allow_list() -> None:
    shown = shown_environment({"NCCL_X": "1", "MYVAR": "x", "SLURM_JOB_ID": "7"}, Scrubber(()))

    assert shown == {"MYVAR": "[set]", "NCCL_X": "1", "SLURM_JOB_ID": "7"}


@pytest.mark.parametrize("text", ["x", "token", "token ", "a.b-c_", "http://", 'secret="\\', "a+"])
def test_long_runs_of_anything_are_scrubbed_in_one_pass(text: str) -> None:
    Scrubber(()).scrub(text * (1_000_000 // len(text)))  # minutes, were a rule to look back


# Our own tokens and secrets.

TOKEN = f"rm_af9740e0_{'ab' * 32}"


def test_own_tokens_are_known_by_their_form_whole_or_cut() -> None:
    scrubber = Scrubber(({},))

    for text in (TOKEN, TOKEN[:40], f"client got {TOKEN} from the vault", f"'{TOKEN}'"):
        assert "abab" not in scrubber.scrub(text)
    assert scrubber.scrub("rm_all the files, rm_old_logs") == "rm_all the files, rm_old_logs"


def test_bundle_holds_no_secret_of_token_files_and_notes(job: Path, tmp_path: Path) -> None:
    site, checkpoints = tmp_path / "site", tmp_path / "ckpt"
    (checkpoints / ".rankmend").mkdir(parents=True)
    site.mkdir()
    secret, own, plain = (
        "c0ffee" * 10 + "beef",
        "a site's own token file".replace(" ", "-"),
        "dead" * 16,
    )
    (tmp_path / "mine.token").write_text(f"{own}\n")
    (site / "admin.token").write_text(plain)
    (checkpoints / ".rankmend/host.json").write_text(json.dumps({"secret": secret}))
    environment = ENVIRONMENT | {"RANKMEND_TOKEN_FILE": str(tmp_path / "mine.token")}

    found = find_secrets(
        job, (environment,), ["rankmend", "run", f"--checkpoint-dir={checkpoints}"], site
    )

    assert set(found) == {own, plain, secret, Identity(secret).token}
    log = next(job.rglob("*stderr*rank*0*"))
    log.write_text(f"{TOKEN}\n{own}\n{log.read_text()}")
    _folder, entries = find_story(job.parents[1], "job-1")
    make_bundle(job, entries, tmp_path / "b.tar.gz", environment, 1e9)
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        bodies = [archive.extractfile(one) for one in archive.getmembers()]
        packed = b"".join(body.read() for body in bodies if body is not None)
    assert b"ab" * 8 not in packed  # four characters stand in some digest by chance
    assert own.encode() not in packed
    assert b"[removed]" in packed

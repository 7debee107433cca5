"""Jobs whose launchers are refused: who sees it, when it is over, and what a revocation says beforehand."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from rankmend.cli.controller import controller
from recovery.api.controller_errors import RefusedError, UnknownJobError
from recovery.api.wire import JobView
from recovery.controller.cluster.notices import NoticeKind
from recovery.service.daemon import read
from recovery.service.roles import Role
from recovery.service.tokens import add_token, make_token, read_tokens, revoke_token
from tests.support.eventually import eventually
from tests.support.service import FullClient, Running, Speaker, join_of, make_folder, running

pytestmark = pytest.mark.process


def give_token(folder: Path, subject: str, role: Role = Role.LAUNCH) -> str:
    """Write a new token of a subject to its file, and return the token's id."""
    text, entry = make_token(subject, [role])
    add_token(folder / "tokens.toml", entry)
    path = folder / f"{subject}.token"
    path.unlink(missing_ok=True)
    path.write_text(f"{text}\n")
    path.chmod(0o600)
    return entry.id


def reload(up: Running) -> None:
    up.thread.reload(*read(up.folder / "controller.toml"))


def join(client: FullClient, node: str) -> Speaker:
    joined = client.join(join_of(node, key="job:llama", name="llama"))
    speaker = Speaker(client, node, joined.job_id)
    speaker.say()
    return speaker


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Running]:
    make_folder(tmp_path / "c")
    with running(tmp_path / "c") as up:
        yield up


def shown(up: Running) -> JobView:
    (job,) = up.client("admin").jobs()
    return job


def poll(speaker: Speaker) -> None:
    with contextlib.suppress(RefusedError):
        speaker.ask(wait_s=0.0)


def test_a_job_whose_token_was_revoked_is_orphaned_until_its_launcher_has_another(
    up: Running,
) -> None:
    token_id = give_token(up.folder, "alice")
    reload(up)
    speaker = join(up.client("alice"), "n1")
    before = shown(up)
    revoke_token(up.folder / "tokens.toml", token_id)
    reload(up)

    def is_orphaned() -> bool:
        poll(speaker)
        return bool(shown(up).orphans)

    eventually(is_orphaned, "the job is shown as orphaned", pause_s=0.2)
    orphaned = shown(up)
    pager = up.service.pager
    eventually(lambda: pager.counts()[NoticeKind.JOB_ORPHANED.value] == 1, "people receive it")
    page = up.client("admin").request("GET", "/metrics").decode()
    give_token(up.folder, "alice")
    reload(up)
    speaker.say()

    assert (before.orphans, before.problem, before.tokens) == ([], None, [token_id])
    assert orphaned.orphans == ["n1"]
    assert orphaned.problem == (
        f"1 launcher is refused (n1): token {token_id} is unknown or was revoked. Its ranks run on, and rankmend recovers no failure of "
        "them: put a valid token into the launchers' token file (rankmend controller token add alice --role launch --output FILE)"
    )
    assert 'rankmend_controller_notices{notice="RankmendJobOrphaned"} 1.0' in page
    assert (shown(up).orphans, shown(up).problem) == ([], None)


def test_a_token_that_has_lost_its_role_orphans_the_job_and_another_role_is_read_again(
    up: Running,
) -> None:
    give_token(up.folder, "alice")
    reload(up)
    speaker = join(up.client("alice"), "n1")
    give_token(up.folder, "alice", Role.READ)
    path = up.folder / "tokens.toml"
    for entry in read_tokens(path):
        if entry.subject == "alice" and Role.LAUNCH in entry.roles:
            revoke_token(path, entry.id)
    reload(up)

    def is_orphaned() -> bool:
        poll(speaker)
        return "does not have the role" in (shown(up).problem or "")

    eventually(is_orphaned, "it says that the role is missing", pause_s=0.2)
    give_token(up.folder, "alice")
    reload(up)
    speaker.say()

    assert shown(up).orphans == []


def limit(folder: Path, subject: str, **limits: list[str]) -> None:
    """Replace the token in a launcher's file by one of this subject, with these limits."""
    for entry in read_tokens(folder / "tokens.toml"):
        if entry.subject == "alice":
            revoke_token(folder / "tokens.toml", entry.id)
    text, entry = make_token(subject, [Role.LAUNCH], **limits)
    add_token(folder / "tokens.toml", entry)
    (folder / "alice.token").write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("subject", "limits", "why"),
    [
        ("alice-2", {}, "its token, of alice-2, does not reach the job"),
        ("alice", {"jobs": ["gemma*"]}, "its token, of alice, does not reach the job"),
        ("alice", {"nodes": ["x*"]}, "alice may not speak for node 'n1'"),
    ],
    ids=["another subject", "other jobs", "other nodes"],
)
def test_a_job_whose_launcher_got_a_token_that_does_not_reach_it_is_orphaned(
    up: Running, subject: str, limits: dict[str, list[str]], why: str
) -> None:
    give_token(up.folder, "alice")
    reload(up)
    speaker = join(up.client("alice"), "n1")
    limit(up.folder, subject, **limits)
    reload(up)
    refused = Speaker(up.client("alice"), "n1", speaker.job_id)

    def is_orphaned() -> bool:
        with contextlib.suppress(RefusedError, UnknownJobError):
            refused.ask(wait_s=0.0)
        return bool(shown(up).orphans)

    eventually(is_orphaned, "the job is shown as orphaned", pause_s=0.2)

    assert why in (shown(up).problem or "")


def test_a_stranger_makes_no_job_look_orphaned(up: Running) -> None:
    """Whoever has no token may ask for any job's orders, and is turned away as a launcher of it would be."""
    give_token(up.folder, "alice")
    reload(up)
    speaker = join(up.client("alice"), "n1")
    stranger = up.client("", token="rm_00000000_" + "0" * 64)
    jobs = up.service.worker.jobs.running

    give_token(up.folder, "mallory")
    reload(up)
    for node in ("n2", "n1"):  # a node of another job, and then one of its own
        poll(Speaker(stranger, node, speaker.job_id))
        with contextlib.suppress(UnknownJobError):
            Speaker(up.client("mallory"), node, speaker.job_id).ask(wait_s=0.0)
    eventually(lambda: jobs[speaker.job_id].refused, "the worker has noted the refusals")
    assert set(jobs[speaker.job_id].refused) == {"n1"}, "of nodes of the job alone"
    speaker.say()

    assert shown(up).orphans == []


def test_a_revocation_names_the_jobs_that_use_the_token_and_asks(up: Running) -> None:
    used, unused = give_token(up.folder, "alice"), give_token(up.folder, "bob")
    reload(up)
    job_id = join(up.client("alice"), "n1").job_id
    where = ["--tokens-file", str(up.folder / "tokens.toml")]
    asked = ["--controller", up.url, "--ca-file", str(up.ca)]
    asked += ["--token-file", str(up.folder / "admin.token")]

    def revoke(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(controller, ["token", "revoke", *words, *where])
        return done.exit_code, done.output

    by_api, by_folder = revoke(used, *asked), revoke(used)
    kept = {entry.id for entry in read_tokens(up.folder / "tokens.toml")}
    other = revoke(unused, *asked)
    agreed = revoke(used, "--yes", *asked)
    left = {entry.id for entry in read_tokens(up.folder / "tokens.toml")}

    named = f"1 running job: llama ({job_id[:8]})"
    assert by_api[0] == by_folder[0] == 2
    assert f"Launchers of {named} use token {used}" in by_api[1]
    assert f"alice has {named}. Launchers that use token {used}" in by_folder[1]
    assert all("no failure of theirs is recovered" in text for _code, text in (by_api, by_folder))
    assert all("There is no terminal to ask on: add --yes" in one[1] for one in (by_api, by_folder))
    assert used in kept
    assert (other[0], "running job" in other[1]) == (0, False)
    assert agreed[0] == 0
    assert named in agreed[1]
    assert not {used, unused} & left


def test_a_revocation_that_can_ask_nobody_says_so_and_asks(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text("")
    path.chmod(0o600)
    token_id = give_token(tmp_path, "alice")

    done = CliRunner().invoke(controller, ["token", "revoke", token_id, "--tokens-file", str(path)])

    assert done.exit_code == 2
    assert f"It is not known which running jobs use token {token_id}" in done.output

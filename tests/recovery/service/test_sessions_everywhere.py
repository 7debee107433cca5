"""A login at one of two controllers of a database holds at the other one, and so does its end."""

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
import urllib3

from recovery.console.sessions import IDLE_S_MAX, SESSIONS_OF_KEY_MAX, name_of
from recovery.service.daemon import read
from recovery.service.tokens import revoke_token
from tests.support.controllers import configure
from tests.support.eventually import eventually
from tests.support.oidc_provider import SECRET, Browser, Provider, oidc_tables, running_provider
from tests.support.postgres import PostgresServer
from tests.support.service import Running, running

pytestmark = pytest.mark.site


@dataclass
class Two:
    here: Running
    there: Running
    provider: Provider
    postgres: PostgresServer
    database: str
    pool: urllib3.PoolManager

    def browsers(self) -> tuple[Browser, Browser]:
        """Return one browser, as both controllers see it."""
        here, there = Browser(self.pool, self.here.url), Browser(self.pool, self.there.url)
        there.cookies = here.cookies
        return here, there

    def token(self, name: str = "admin") -> str:
        return (self.here.folder / f"{name}.token").read_text().strip()

    def reload(self) -> None:
        for up in (self.here, self.there):
            shutil.copy(self.here.folder / "tokens.toml", up.folder / "tokens.new")
            (up.folder / "tokens.new").rename(up.folder / "tokens.toml")
            up.thread.reload(*read(up.folder / "controller.toml"))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[Two]:
    home, database = tmp_path_factory.mktemp("sessions"), postgres.make_database()
    secret = home / "oidc.secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    with ExitStack() as stack:
        provider = stack.enter_context(running_provider())
        more, started = oidc_tables(provider, str(secret)), []
        for name in ("here", "there"):
            like = started[0].folder if started else None
            url = postgres.url(database, "controller")
            folder = configure(home / name, url, lease_s=30.0, like=like, more=more)
            started.append(stack.enter_context(running(folder)))
        pool = stack.enter_context(urllib3.PoolManager(ca_certs=str(started[0].ca)))
        yield Two(started[0], started[1], provider, postgres, database, pool)


def csrf_of_page(browser: Browser) -> str:
    page = browser.get("/act?act=pause&scope=cluster").data.decode()
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found is not None
    return found[1]


def test_who_signs_in_with_a_token_here_reads_and_acts_there(two: Two) -> None:
    here, there = two.browsers()

    assert here.post("/sign-in", token=two.token()).status == 303

    eventually(lambda: there.is_signed_in, "it is signed in")
    csrf = csrf_of_page(here)
    form = {"scope": "cluster", "reason": "a test", "csrf": csrf}
    assert there.post("/act", act="pause", **form).status == 200
    assert there.post("/act", act="resume", **form).status == 200


def test_a_logout_there_holds_here(two: Two) -> None:
    here, there = two.browsers()
    here.post("/sign-in", token=two.token())
    copied = dict(here.cookies)
    eventually(lambda: there.is_signed_in, "it is signed in")

    there.post("/sign-out", csrf=csrf_of_page(there))
    here.cookies.update(copied)

    eventually(lambda: not here.is_signed_in, "nobody is signed in")
    eventually(lambda: not there.is_signed_in, "nobody is signed in")


def test_a_revoked_token_ends_its_sessions_at_both(two: Two) -> None:
    here, there = two.browsers()
    here.post("/sign-in", token=two.token())
    eventually(lambda: there.is_signed_in, "it is signed in")
    kept = (two.here.folder / "tokens.toml").read_bytes()

    revoke_token(two.here.folder / "tokens.toml", two.token().split("_")[1])
    two.reload()
    eventually(lambda: not here.is_signed_in and not there.is_signed_in, "its sessions have ended")
    (two.here.folder / "tokens.toml").write_bytes(kept)
    two.reload()


def test_a_sign_in_that_began_here_ends_there_and_holds_at_both(two: Two) -> None:
    here, there = two.browsers()
    asked = here.begin().headers["Location"]
    replayed = dict(here.cookies)

    assert there.back(two.provider.approve(asked)).status == 200

    eventually(lambda: here.is_signed_in, "it is signed in")
    eventually(lambda: there.is_signed_in, "it is signed in")
    thief = Browser(two.pool, two.here.url)
    thief.cookies = replayed
    assert thief.back(two.provider.approve(asked)).status == 401


def test_the_database_keeps_hashes_and_not_more_than_the_bound(two: Two) -> None:
    here, _there = two.browsers()
    for _number in range(SESSIONS_OF_KEY_MAX + 2):
        here.post("/sign-in", token=two.token())
    (cookie,) = here.cookies.values()

    rows = two.postgres.ask(
        two.database,
        "SELECT session, key, identity FROM rankmend.console_session WHERE identity = ''",
    )

    assert len(rows) == SESSIONS_OF_KEY_MAX
    assert name_of(cookie) in {row[0] for row in rows}
    assert cookie not in str(rows)
    eventually(lambda: here.is_signed_in, "it is signed in")


def test_an_idle_session_ends_by_the_clock_of_the_database(two: Two) -> None:
    here, there = two.browsers()
    here.post("/sign-in", token=two.token())
    (cookie,) = here.cookies.values()
    two.postgres.ask(
        two.database,
        "UPDATE rankmend.console_session SET seen_at = seen_at - make_interval(secs => %s) WHERE session = %s",
        IDLE_S_MAX + 60,
        name_of(cookie),
    )

    eventually(lambda: not here.is_signed_in, "nobody is signed in")
    eventually(lambda: not there.is_signed_in, "nobody is signed in")

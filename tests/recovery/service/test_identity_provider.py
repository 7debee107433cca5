"""Sign-in to the console at an identity provider: what it takes, and attacks on it."""

import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import urllib3
from joserfc import jwt
from joserfc.jwk import ECKey

from rankmend.errors import ConfigError
from recovery.service.controller_config import Config, ConsoleSection, OidcGroup, check
from recovery.service.sign_in.identity_provider import open_provider
from tests.support.clocks import FakeClock
from tests.support.oidc_provider import (
    OUTSIDE,
    SECRET,
    Browser,
    Provider,
    other_key,
    running_provider,
    sign_with,
)
from tests.support.service import Running, make_folder, running

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("oidc") / "files"
    make_folder(folder)
    secret = folder / "oidc.secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    return folder


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[tuple[Provider, Running, Config]]:
    with running_provider() as provider:

        def change(config: Config) -> Config:
            section = provider.section(str(folder / "oidc.secret"))
            console = ConsoleSection(url=OUTSIDE)
            return msgspec.structs.replace(config, oidc=section, console=console)

        with running(folder, change) as up:
            yield provider, up, up.service.config


@pytest.fixture
def up(site: tuple[Provider, Running, Config]) -> Running:
    """A controller that has asked its provider nothing yet."""
    provider, up, config = site
    provider.reset()
    up.thread.reload(config, up.service.api.doorman.tokens, up.service.policy)
    return up


@pytest.fixture
def provider(site: tuple[Provider, Running, Config], up: Running) -> Provider:
    del up  # which resets it
    return site[0]


@pytest.fixture
def browser(up: Running) -> Iterator[Browser]:
    with urllib3.PoolManager(ca_certs=str(up.ca)) as pool:
        yield Browser(pool, up.url)


def another(browser: Browser) -> Browser:
    return Browser(browser._pool, browser.url)


def text_of(answer: Any) -> str:
    found = re.search(r'<p class="problem" role="alert">(.*?)</p>', answer.data.decode(), re.DOTALL)
    return found[1].replace("&#39;", "'") if found else ""


# What it takes.


def test_a_person_signs_in_reads_and_acts_by_its_group(
    browser: Browser, provider: Provider
) -> None:
    back = browser.sign_in(provider, "/incidents?x=1")

    assert (back.status, back.headers["Refresh"]) == (200, "0; url=../../incidents?x=1")
    page = browser.get("/jobs").data.decode()
    assert "ann" in page
    assert browser.get("/act?act=pause&scope=cluster").status == 200
    assert list(browser.cookies) == ["__Host-rankmend"], "what the sign-in needed is gone"


def test_the_request_has_pkce_state_nonce_and_the_address_behind_the_proxy(
    browser: Browser,
) -> None:
    begun = browser.begin()

    query = dict(pair.split("=", 1) for pair in begun.headers["Location"].split("?")[1].split("&"))
    assert begun.status == 303
    assert (
        query["redirect_uri"] == "https%3A%2F%2Fops.example%2Frankmend%2Fsign-in%2Foidc%2Fcallback"
    )
    assert (query["code_challenge_method"], query["scope"]) == ("S256", "openid+profile")
    assert all(len(query[name]) >= 43 for name in ("state", "nonce", "code_challenge"))
    assert "SameSite=Lax" in begun.headers["Set-Cookie"]
    assert "HttpOnly" in begun.headers["Set-Cookie"]


def test_the_first_entry_with_one_of_a_persons_groups_counts(
    browser: Browser, provider: Provider
) -> None:
    provider.claims = {"groups": ["people"], "preferred_username": "bob"}
    browser.sign_in(provider)

    assert browser.is_signed_in
    refused = browser.get("/act?act=pause&scope=cluster")
    assert refused.status == 403
    assert "bob may read, and not act" in refused.data.decode()


def test_a_session_ends_when_the_settings_don_t_allow_it_any_more(
    browser: Browser, provider: Provider, up: Running
) -> None:
    browser.sign_in(provider)
    assert browser.is_signed_in
    service = up.service
    section = msgspec.structs.replace(
        provider.section(str(up.folder / "oidc.secret")),
        groups=(OidcGroup(group="nobody", roles=("read",)),),
    )

    config = msgspec.structs.replace(service.config, oidc=section)
    up.thread.reload(config, service.api.doorman.tokens, service.policy)

    assert not browser.is_signed_in


def test_a_refused_name_comes_in_no_more(browser: Browser, provider: Provider, up: Running) -> None:
    browser.sign_in(provider)
    service = up.service
    section = provider.section(str(up.folder / "oidc.secret"), refused=("ann",))

    config = msgspec.structs.replace(service.config, oidc=section)
    up.thread.reload(config, service.api.doorman.tokens, service.policy)

    assert not browser.is_signed_in
    assert "the controller refuses that name ([oidc] refused)" in text_of(browser.sign_in(provider))


def test_keys_that_the_provider_exchanges_are_fetched_once(
    browser: Browser, provider: Provider
) -> None:
    browser.sign_in(provider)
    browser.sign_in(provider)
    assert provider.asked["/keys"] == 1
    provider.key, provider.shown = other_key(), [other_key()]

    refused = browser.sign_in(provider)

    assert refused.status == 401, "a stranger's key can't have the provider asked again and again"
    assert provider.asked["/keys"] == 1


def test_an_elliptic_key_signs_as_well(browser: Browser, provider: Provider) -> None:
    key = ECKey.generate_key("P-256", {"kid": "elliptic"})
    provider.shown = [key]  # type: ignore[list-item]
    provider.sign = lambda _provider, claims: jwt.encode(
        {"alg": "ES256", "kid": "elliptic"}, claims, key
    )

    assert browser.sign_in(provider).status == 200


# Attacks.


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def sign_none(_provider: Provider, claims: dict[str, Any]) -> str:
    return f"{part({'alg': 'none', 'kid': 'key-1'})}.{part(claims)}."


def sign_hmac_with_public_key(provider: Provider, claims: dict[str, Any]) -> str:
    head = f"{part({'alg': 'HS256', 'kid': 'key-1'})}.{part(claims)}"
    public = provider.key.as_pem(private=False)
    digest = hmac.digest(public, head.encode(), hashlib.sha256)
    return f"{head}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def sign_with_stranger(_provider: Provider, claims: dict[str, Any]) -> str:
    stranger = other_key()
    return jwt.encode({"alg": "RS256", "kid": "key-1"}, claims, stranger)


def sign_and_change(provider: Provider, claims: dict[str, Any]) -> str:
    head, _claims, signature = sign_with(provider.key, claims).split(".")
    return f"{head}.{part(claims | {'groups': ['operators']})}.{signature}"


@pytest.mark.parametrize(
    ("sign", "text"),
    [
        (sign_none, "The ID token is refused"),
        (sign_hmac_with_public_key, "The ID token is refused"),
        (sign_with_stranger, "No key of"),
        (sign_and_change, "No key of"),
        (lambda _provider, _claims: "a.b.c", "The ID token is refused"),
    ],
)
def test_a_token_that_the_providers_keys_have_not_signed_is_refused(
    browser: Browser,
    provider: Provider,
    sign: Callable[[Provider, dict[str, Any]], str],
    text: str,
) -> None:
    provider.sign = sign

    back = browser.sign_in(provider)

    assert back.status == 401
    assert text in text_of(back)
    assert not browser.is_signed_in


@pytest.mark.parametrize(
    ("claims", "status", "text"),
    [
        ({"iss": "https://evil.example"}, 401, "of the issuer 'https://evil.example'; [oidc] issuer is 'http://127"),
        ({"iss": None}, 401, "of the issuer None"),
        ({"aud": "wiki"}, 401, "is for 'wiki'; [oidc] client_id is 'rankmend'"),
        ({"aud": ["wiki", "rankmend"]}, 401, "(azp); [oidc] client_id is 'rankmend'"),
        ({"azp": "wiki"}, 401, "the party 'wiki' (azp)"),
        ({"aud": None}, 401, "is for None"),
        ({"exp": 1_000_000_000}, 401, "is not valid now"),
        ({"exp": None}, 401, "is not valid now"),
        ({"exp": "never"}, 401, "is not valid now"),
        ({"iat": int(time.time()) + 86_400}, 401, "is not valid now"),
        ({"nbf": int(time.time()) + 86_400}, 401, "is not valid now"),
        ({"nonce": "another"}, 401, "is not for this sign-in (nonce)"),
        ({"nonce": None}, 401, "is not for this sign-in (nonce)"),
        ({"nonce": ["x"]}, 401, "is not for this sign-in (nonce)"),
        ({"sub": None}, 401, "has no sub"),
        ({"groups": "operators"}, 403, "'groups' ([oidc] groups_claim) is 'operators', not a list of texts"),
        ({"groups": {"operators": True}}, 403, "not a list of texts"),
        ({"groups": ["operators", 7]}, 403, "not a list of texts"),
        ({"groups": None}, 403, "has no claim 'groups' ([oidc] groups_claim)"),
        ({"groups": ["x"] * 5001}, 403, "the limit is 5000"),
        ({"groups": ["choir"]}, 403, "ann may not use this console: the controller gives no role to any group of that name ([[oidc.groups]])"),
        ({"preferred_username": "../ann\n"}, 403, "([oidc] name_claim) is"),
        ({"preferred_username": "node:n1"}, 403, "([oidc] name_claim) is"),
        ({"preferred_username": None}, 403, "([oidc] name_claim) is None"),
    ],
)  # fmt: skip
def test_a_token_with_claims_that_do_not_fit_is_refused_with_the_setting_and_the_value(
    browser: Browser, provider: Provider, claims: dict[str, Any], status: int, text: str
) -> None:
    provider.claims = claims

    back = browser.sign_in(provider)

    assert back.status == status
    assert text in text_of(back)
    assert not browser.is_signed_in


def test_an_answer_is_used_once_also_with_a_copy_of_its_cookie(
    browser: Browser, provider: Provider
) -> None:
    asked = browser.begin().headers["Location"]
    thief = another(browser)
    thief.cookies = dict(browser.cookies)
    assert browser.back(provider.approve(asked)).status == 200

    again = thief.back(provider.approve(asked))

    assert (again.status, text_of(again)) == (401, "This sign-in was used already. Begin again.")
    assert not thief.is_signed_in


def test_an_answer_counts_only_in_the_browser_that_began(
    browser: Browser, provider: Provider
) -> None:
    attacker, victim = another(browser), another(browser)
    lure = provider.approve(attacker.begin().headers["Location"])

    without = victim.back(lure)
    victim.begin()
    with_own = victim.back(lure)

    assert "didn't begin in this browser at https://ops.example/rankmend" in text_of(without)
    assert "belongs to another sign-in" in text_of(with_own)
    assert not victim.is_signed_in


def test_a_cookie_that_this_controller_has_not_sealed_is_refused(
    browser: Browser, provider: Provider
) -> None:
    back = provider.approve(browser.begin().headers["Location"])
    name = "__Host-rankmend-sign-in"
    kept = browser.cookies[name]
    for forged in ("x", kept[:-4] + "AAAA", "e30=", "A" * 5000):
        browser.cookies[name] = forged
        assert browser.back(back).status == 401, forged[:20]
    assert not browser.is_signed_in


@pytest.mark.parametrize(
    "there",
    ["https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:alert(1)", "\n/x", "/a\r\nX: y"],
)  # fmt: skip
def test_a_sign_in_leads_to_pages_of_this_console_only(
    browser: Browser, provider: Provider, there: str
) -> None:
    back = browser.sign_in(provider, there)

    assert back.headers["Refresh"] == "0; url=../../"


def test_an_answer_of_another_issuer_is_refused(browser: Browser, provider: Provider) -> None:
    asked = browser.begin().headers["Location"]

    back = browser.back(provider.approve(asked, iss="https://evil.example"))

    assert "comes from the issuer 'https://evil.example'" in text_of(back)
    assert provider.asked["/token"] == 0


def test_what_the_provider_refuses_is_shown_as_text(browser: Browser, provider: Provider) -> None:
    asked = browser.begin().headers["Location"]

    back = browser.back(
        provider.approve(asked, error="access_denied", error_description="<b>no</b>")
    )

    assert back.status == 403
    assert "refuses the sign-in: 'access_denied': '&lt;b&gt;no&lt;/b&gt;'" in text_of(back)


def test_a_code_that_the_provider_does_not_redeem_names_the_settings(
    browser: Browser, provider: Provider
) -> None:
    asked = browser.begin().headers["Location"]
    back = provider.approve(asked)
    provider.codes.clear()

    text = text_of(browser.back(back))

    assert "doesn't redeem the code: 'invalid_grant'" in text
    assert "Check [oidc] client_id = 'rankmend', client_secret_file = " in text
    assert SECRET not in text


# A provider that is away, or isn't one.


def test_tokens_and_sessions_go_on_while_the_provider_is_away(
    browser: Browser, folder: Path, provider: Provider, up: Running
) -> None:
    browser.sign_in(provider)
    token, fresh = (folder / "admin.token").read_text().strip(), another(browser)
    section = provider.section(str(folder / "oidc.secret"), issuer="http://127.0.0.1:9")
    service = up.service
    config = msgspec.structs.replace(service.config, oidc=section)
    up.thread.reload(config, service.api.doorman.tokens, service.policy)

    away = fresh.begin()
    signed = fresh.post("/sign-in", token=token, next="/jobs")

    assert away.status == 503
    assert "does not answer: http://127.0.0.1:9/.well-known" in text_of(away)
    assert "([oidc] issuer = 'http://127.0.0.1:9')" in text_of(away)
    assert signed.status == 303
    assert fresh.is_signed_in
    assert browser.is_signed_in


@pytest.mark.parametrize(
    ("described", "text"),
    [
        ({"issuer": "https://evil.example"}, "description of the issuer 'https://evil.example'; [oidc] issuer is"),
        ({"token_endpoint": "http://evil.example/token"}, "has token_endpoint = 'http://evil.example/token', which is not https"),
        ({"jwks_uri": "file:///etc/passwd"}, "has jwks_uri = 'file:///etc/passwd', which is not https"),
        ({"jwks_uri": 7}, "does not answer as OpenID Connect says"),
    ],
)  # fmt: skip
def test_a_description_that_leads_elsewhere_is_refused(
    browser: Browser, provider: Provider, described: dict[str, Any], text: str
) -> None:
    provider.described = described

    begun = browser.begin()

    assert begun.status == 502
    assert text in text_of(begun)


def test_an_endless_answer_and_a_redirect_are_not_followed(
    browser: Browser, provider: Provider
) -> None:
    provider.moved_to = "http://127.0.0.1:9"
    assert "answers HTTP 307" in text_of(browser.begin())
    assert "answers HTTP 307" in text_of(browser.begin())
    assert provider.asked["/.well-known/openid-configuration"] == 1, "not asked for each request"


def test_an_answer_that_is_too_large_is_refused(browser: Browser, provider: Provider) -> None:
    provider.padding = 300_000

    assert "answers with more than 262144 bytes" in text_of(browser.begin())


# Settings.


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"issuer": "http://login.example"}, r"\[oidc\] issuer = 'http://login.example' is not https://"),
        ({"scopes": ("profile",)}, r"\[oidc\] scopes = \['profile'\] lack 'openid'"),
        ({"groups": (OidcGroup(group="g", roles=("launch",)),)}, r"\[\[oidc.groups\]\] 'g': roles has 'launch'; write read, fleet-read, act"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_named_with_their_value(
    more: dict[str, Any], text: str
) -> None:
    section = Provider("https://login.example").section("/secret", **more)
    with pytest.raises(ConfigError, match=text):
        check(Config(state_dir="/x", tokens_file="/tokens", oidc=section))


def test_without_tokens_there_is_nothing_to_sign_in_to() -> None:
    section = Provider("https://login.example").section("/secret")
    with pytest.raises(ConfigError, match=r"\[oidc\] needs tokens_file"):
        check(Config(state_dir="/x", oidc=section))


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o644)
    section = Provider("https://login.example").section(str(secret))
    with pytest.raises(ConfigError, match=r"\[oidc\] client_secret_file: .*mode 0644"):
        open_provider(Config(state_dir="/x", oidc=section), "host", FakeClock())

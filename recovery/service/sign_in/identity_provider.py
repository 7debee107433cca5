"""Sign-in to the console at an identity provider: OpenID Connect, authorization code flow with PKCE.

What a sign-in needs between its two requests (state, nonce, verifier, page) travels in the browser's cookie, sealed with a key
that follows from the client's secret. So any controller with the same settings can finish it, strangers can't fill a table, and the
answer counts only in the browser that began. Each sign-in is used once.

Rules: only algorithms with a public key, so that neither `none` nor an HMAC with that key passes; `iss`, `aud`, `azp`, `exp`, `iat`,
`nbf` and `nonce` are checked; endpoints are those of the provider's own description, by TLS but on loopback; no redirect is followed;
every answer is bounded in time and size. The provider is asked during a sign-in only: while it is away, sessions and tokens go on.
"""

import asyncio
import base64
import hashlib
import logging
import re
import secrets
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import msgspec
from cryptography.fernet import Fernet, InvalidToken

from rankmend.clock import Clock
from rankmend.errors import ConfigError, RankmendError
from rankmend.packages import Extra, require
from rankmend.printable import printable
from rankmend.token_file import read_token
from recovery.api.contact import is_loopback
from recovery.service.controller_config import Config, OidcSection, console_base
from recovery.service.roles import Role, Subject

log = logging.getLogger(__name__)

BEGIN_PATH: Final = "/sign-in/oidc"
ANSWER_PATH: Final = f"{BEGIN_PATH}/callback"
SIGN_IN_S_MAX: Final = (
    600.0  # at the provider: a password, a second factor, a call to the help desk
)
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519",
)  # fmt: skip
_KEY_KINDS: Final = frozenset({"RSA", "EC", "OKP"})
_KEYS_MAX: Final = 100  # providers show two to five
_BYTES_MAX: Final = 256 * 1024  # of an answer; descriptions and keys have 2 to 20 kB
_ANSWER_S_MAX: Final = 10.0
_FRESH_S: Final = 3600.0  # for which description and keys are used without a question
_STALE_S_MAX: Final = (
    86_400.0  # for which the old keys serve while the provider's are not to be had
)
_AGAIN_S: Final = 10.0  # between two questions after a failure, or for a key that is not known
_LEEWAY_S: Final = 60  # between the provider's clock and ours
_CODE_CHARACTERS_MAX: Final = 4096
_COOKIE_CHARACTERS_MAX: Final = 3800  # browsers keep 4096 with name and attributes
_PATH_CHARACTERS_MAX: Final = 1000
_GROUPS_MAX: Final = 5000
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}")


class SignInRefusedError(RankmendError):
    """A sign-in failed; with the HTTP status that says so."""

    def __init__(self, message: str, status: int = 401) -> None:
        super().__init__(message)
        self.status = status


class ProvenPerson(msgspec.Struct, frozen=True):
    """A person, by the word of the provider. Kept with the session."""

    subject: str  # `sub`: the provider's own name, which stays
    name: str  # by which jobs, journal and audit know the person
    groups: tuple[str, ...]  # those of [[oidc.groups]] only


class _Sealed(msgspec.Struct, frozen=True):
    state: str
    nonce: str
    verifier: str
    there: str


class _Description(msgspec.Struct, frozen=True):
    """The part of the provider's description that is used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class _TokenAnswer(msgspec.Struct, frozen=True):
    id_token: str


class _TokenProblem(msgspec.Struct, frozen=True):
    error: str
    error_description: str = ""


@dataclass(frozen=True, slots=True)
class Begun:
    url: str  # to which the browser goes
    cookie: str


@dataclass(frozen=True, slots=True)
class Finished:
    identity: ProvenPerson
    there: str  # the page to go on with


@dataclass(frozen=True, slots=True)
class _Keys:
    found: Any  # joserfc's KeySet
    at_s: float


def subject_of_identity(identity: ProvenPerson, section: OidcSection) -> Subject | None:
    """Return a person's rights by the settings now: those of the first entry with one of its groups. None: none any more."""
    if identity.name in section.refused:
        return None
    for entry in section.groups:
        if entry.group in identity.groups:
            return Subject(
                identity.name,
                frozenset(Role(role) for role in entry.roles),
                entry.nodes,
                entry.jobs,
                f"oidc {identity.subject}",
            )
    return None


def open_provider(config: Config, host_name: str, clock: Clock) -> "IdentityProvider | None":
    """Return the provider of a configuration; None: it has none. Raises ConfigError, which names the setting."""
    section = config.oidc
    if section is None:
        return None
    require(Extra.OIDC, "[oidc] in the controller's configuration")
    return IdentityProvider(section, f"{console_base(config, host_name)}{ANSWER_PATH}", clock)


class IdentityProvider:
    """Belongs to the event loop."""

    def __init__(self, section: OidcSection, redirect_uri: str, clock: Clock) -> None:
        try:
            self._secret = read_token(Path(section.client_secret_file))
        except ConfigError as error:
            raise ConfigError(f"[oidc] client_secret_file: {error}") from error
        self.section = section
        self.redirect_uri = redirect_uri
        self._clock = clock
        self._context = _make_context(section)
        digest = hashlib.sha256(
            b"rankmend sign-in " + section.client_id.encode() + b"\0" + self._secret.encode()
        )
        self._seal = Fernet(base64.urlsafe_b64encode(digest.digest()))
        self._lock = asyncio.Lock()
        self._description: _Description | None = None
        self._described_at_s = 0.0
        self._keys: _Keys | None = None
        self._keys_tried_at_s: float | None = None
        self._failed: tuple[float, SignInRefusedError] | None = None

    # The two requests of a sign-in.

    async def begin(self, there: str) -> Begun:
        """Return where the browser goes, and the cookie with which it comes back. ``there``: the page that it wants."""
        description = await self._describe()
        sealed = _Sealed(
            secrets.token_urlsafe(32),
            secrets.token_urlsafe(32),
            secrets.token_urlsafe(64),
            there if len(there) <= _PATH_CHARACTERS_MAX else "/",
        )
        challenge = hashlib.sha256(sealed.verifier.encode()).digest()
        requested = {
            "response_type": "code",
            "client_id": self.section.client_id,
            "redirect_uri": self.redirect_uri,
            "scope": " ".join(self.section.scopes),
            "state": sealed.state,
            "nonce": sealed.nonce,
            "code_challenge": base64.urlsafe_b64encode(challenge).decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        endpoint = description.authorization_endpoint
        mark = "&" if urlsplit(endpoint).query else "?"
        text = self._seal.encrypt_at_time(msgspec.json.encode(sealed), int(self._clock.unix_s()))
        return Begun(f"{endpoint}{mark}{urlencode(requested)}", text.decode("ascii"))

    async def finish(
        self, given: Mapping[str, str], cookie: str, use: Callable[[str], Awaitable[bool]]
    ) -> Finished:
        """Return the person, by what the provider had the browser bring back. ``use`` says whether a state is used for the first time."""
        sealed = self._unseal(cookie)
        if not secrets.compare_digest(
            given.get("state", "").encode("utf-8", "replace"), sealed.state.encode()
        ):
            raise SignInRefusedError(
                "This answer belongs to another sign-in: nobody was signed in. Begin again."
            )
        if not await use(sealed.state):
            raise SignInRefusedError("This sign-in was used already. Begin again.")
        if given.get("iss", self.section.issuer) != self.section.issuer:
            raise SignInRefusedError(
                f"The answer comes from the issuer {_short(given['iss'])}; [oidc] issuer is {self.section.issuer!r}."
            )
        if "error" in given:
            why = ": ".join(
                _short(given[key]) for key in ("error", "error_description") if given.get(key)
            )
            raise SignInRefusedError(f"The identity provider refuses the sign-in: {why}", 403)
        code = given.get("code", "")
        if not code or len(code) > _CODE_CHARACTERS_MAX:
            raise SignInRefusedError(
                "The identity provider's answer has no code. Begin again.", 400
            )
        description = await self._describe()
        text = await self._redeem(description, code, sealed.verifier)
        claims = await self._verify(description, text)
        return Finished(read_claims(claims, self.section, sealed.nonce), sealed.there)

    def _unseal(self, cookie: str) -> _Sealed:
        try:
            body = self._seal.decrypt_at_time(
                cookie[:_COOKIE_CHARACTERS_MAX].encode("ascii", "replace"),
                int(SIGN_IN_S_MAX),
                int(self._clock.unix_s()),
            )
            return msgspec.json.decode(body, type=_Sealed)
        except (InvalidToken, msgspec.DecodeError) as error:
            raise SignInRefusedError(
                f"This sign-in didn't begin in this browser at {self.redirect_uri.removesuffix(ANSWER_PATH)}, or more than "
                f"{SIGN_IN_S_MAX / 60:g} minutes ago, or is over. Begin again there."
            ) from error

    # What the provider says.

    async def _describe(self) -> _Description:
        """Return the provider's description, of the last hour, and its keys with it."""
        async with self._lock:
            now_s = self._clock.now_s()
            if self._description is not None and now_s - self._described_at_s < _FRESH_S:
                return self._description
            if self._failed is not None and now_s - self._failed[0] < _AGAIN_S:
                raise self._failed[1]
            issuer = self.section.issuer
            url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
            try:
                found: _Description = await self._get(url, _Description)
                if found.issuer != issuer:
                    raise SignInRefusedError(
                        f"{url} is the description of the issuer {_short(found.issuer)}; [oidc] issuer is {issuer!r}: write it "
                        f"as the provider does.",
                        502,
                    )
                for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                    _check_endpoint(name, getattr(found, name), issuer)
            except SignInRefusedError as error:
                if self._description is not None and now_s - self._described_at_s < _STALE_S_MAX:
                    return self._description
                self._failed = (now_s, error)
                raise
            self._description, self._described_at_s, self._failed = found, now_s, None
            return found

    async def _keys_for(self, description: _Description, *, is_unknown: bool) -> Any:
        """Return the provider's keys. ``is_unknown``: a token names a key that they don't have."""
        async with self._lock:
            now_s, retained = self._clock.now_s(), self._keys
            is_fresh = retained is not None and now_s - retained.at_s < _FRESH_S
            tried_s = self._keys_tried_at_s
            is_too_soon = tried_s is not None and now_s - tried_s < _AGAIN_S
            if retained is not None and ((is_fresh and not is_unknown) or is_too_soon):
                return retained.found
            self._keys_tried_at_s = now_s
            try:
                found = _read_keys(await self._get(description.jwks_uri, dict[str, Any]))
            except SignInRefusedError:
                if retained is not None and now_s - retained.at_s < _STALE_S_MAX:
                    return retained.found
                raise
            self._keys = _Keys(found, now_s)
            return found

    async def _redeem(self, description: _Description, code: str, verifier: str) -> str:
        """Return the ID token for a code."""
        section, methods = self.section, description.token_endpoint_auth_methods_supported
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_uri,
            "code_verifier": verifier,
        }
        headers: dict[str, str] = {}
        if "client_secret_basic" not in methods and "client_secret_post" in methods:
            form |= {"client_id": section.client_id, "client_secret": self._secret}
        else:
            pair = f"{quote(section.client_id, safe='')}:{quote(self._secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        status, body = await self._ask(
            "POST", description.token_endpoint, data=form, headers=headers
        )
        if status != 200:
            try:
                problem = msgspec.json.decode(body, type=_TokenProblem)
                why = " ".join(
                    _short(text) for text in (problem.error, problem.error_description) if text
                )
            except msgspec.DecodeError:
                why = f"HTTP {status}"
            raise SignInRefusedError(
                f"The identity provider doesn't redeem the code: {why}. Check [oidc] client_id = {section.client_id!r}, "
                f"client_secret_file = {section.client_secret_file!r} and the redirect URI {self.redirect_uri!r} there.",
                502,
            )
        found: _TokenAnswer = _decode(body, _TokenAnswer, description.token_endpoint)
        return found.id_token

    async def _verify(self, description: _Description, text: str) -> Mapping[str, Any]:
        """Return the claims of an ID token with a valid signature and times, of this provider and for this client."""
        from joserfc import jwt  # noqa: PLC0415 - of the extra `oidc`
        from joserfc.errors import BadSignatureError, InvalidKeyIdError, JoseError  # noqa: PLC0415

        section, token = self.section, None
        for is_unknown in (False, True):
            keys = await self._keys_for(description, is_unknown=is_unknown)
            try:
                token = jwt.decode(text, keys, algorithms=ALGORITHMS)
                break
            except (InvalidKeyIdError, BadSignatureError) as error:
                if is_unknown:
                    raise SignInRefusedError(
                        f"No key of {description.jwks_uri} has signed the ID token: {error}", 401
                    ) from error
            except (JoseError, ValueError) as error:
                raise SignInRefusedError(
                    f"The ID token is refused: {error}. Its algorithm must be one of {', '.join(ALGORITHMS)}."
                ) from error
        assert token is not None, "decoded, or raised"
        claims = token.claims
        _check_parties(claims, section)
        times = jwt.JWTClaimsRegistry(
            now=int(self._clock.unix_s()),
            leeway=_LEEWAY_S,
            exp={"essential": True},
            iat={"essential": True},
        )
        try:
            times.validate({key: claims.get(key) for key in ("exp", "iat", "nbf") if key in claims})
        except JoseError as error:
            raise SignInRefusedError(
                f"The ID token is not valid now ({error}): do the clocks of this host and of the provider agree?"
            ) from error
        return claims

    async def _get(self, url: str, kind: Any) -> Any:
        status, body = await self._ask("GET", url)
        if status != 200:
            raise SignInRefusedError(
                f"{url} answers HTTP {status}. Is [oidc] issuer = {self.section.issuer!r} right? Tokens still sign in.",
                502,
            )
        return _decode(body, kind, url)

    async def _ask(self, method: str, url: str, **more: Any) -> tuple[int, bytes]:
        headers = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            **more.pop("headers", {}),
        }
        try:
            async with (
                aiohttp.ClientSession(
                    timeout=aiohttp.ClientTimeout(total=_ANSWER_S_MAX, sock_connect=5.0),
                    auto_decompress=False,
                    cookie_jar=aiohttp.DummyCookieJar(),
                ) as session,
                session.request(
                    method, url, headers=headers, allow_redirects=False, ssl=self._context, **more
                ) as answer,
            ):
                body = bytearray()
                async for part in answer.content.iter_chunked(65_536):
                    body += part
                    if len(body) > _BYTES_MAX:
                        raise SignInRefusedError(
                            f"{url} answers with more than {_BYTES_MAX} bytes", 502
                        )
                return answer.status, bytes(body)
        except (aiohttp.ClientError, asyncio.TimeoutError, TimeoutError, OSError) as error:
            why = printable(" ".join(str(error).split()))[:200] or f"nothing in {_ANSWER_S_MAX:g} s"
            log.warning("identity provider does not answer", extra={"url": url, "error": why})
            raise SignInRefusedError(
                f"The identity provider does not answer: {url} ([oidc] issuer = {self.section.issuer!r}): {why}. Tokens still "
                f"sign in.",
                503,
            ) from error


def read_claims(claims: Mapping[str, Any], section: OidcSection, nonce: str) -> ProvenPerson:
    """Return the person of an ID token whose signature, parties and times are right, or raise SignInRefusedError. Pure."""
    given = claims.get("nonce")
    if not isinstance(given, str) or not secrets.compare_digest(
        given.encode("utf-8", "replace"), nonce.encode()
    ):
        raise SignInRefusedError("The ID token is not for this sign-in (nonce). Begin again.")
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= 255 or not subject.isprintable():
        raise SignInRefusedError("The ID token has no sub: nobody knows who this is.")
    name = claims.get(section.name_claim)
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise SignInRefusedError(
            f"The claim {section.name_claim!r} ([oidc] name_claim) is {_short(name)}, not a name of letters, digits and . _ @ + -. "
            f"{_names_of(claims)}",
            403,
        )
    if section.name_claim == "email" and claims.get("email_verified") is False:
        raise SignInRefusedError(
            f"The provider has not verified the e-mail address {name} ([oidc] name_claim = 'email').",
            403,
        )
    groups = claims.get(section.groups_claim)
    if groups is None:
        raise SignInRefusedError(
            f"The ID token has no claim {section.groups_claim!r} ([oidc] groups_claim): let the provider put the groups into it, "
            f"or name the scope for that in [oidc] scopes. {_names_of(claims)}",
            403,
        )
    if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
        raise SignInRefusedError(
            f"The claim {section.groups_claim!r} ([oidc] groups_claim) is {_short(groups)}, not a list of texts.",
            403,
        )
    if len(groups) > _GROUPS_MAX:
        raise SignInRefusedError(
            f"The claim {section.groups_claim!r} has {len(groups)} groups; the limit is {_GROUPS_MAX}.",
            403,
        )
    known = tuple(dict.fromkeys(entry.group for entry in section.groups if entry.group in groups))
    identity = ProvenPerson(subject, name, known)
    if subject_of_identity(identity, section) is None:
        why = (
            "the controller refuses that name ([oidc] refused)"
            if name in section.refused
            else "the controller gives no role to any group of that name ([[oidc.groups]])"
        )
        raise SignInRefusedError(f"{name} may not use this console: {why}.", 403)
    return identity


def _check_parties(claims: Mapping[str, Any], section: OidcSection) -> None:
    """Check who made an ID token, and for whom."""
    if claims.get("iss") != section.issuer:
        raise SignInRefusedError(
            f"The ID token is of the issuer {_short(claims.get('iss'))}; [oidc] issuer is {section.issuer!r}."
        )
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if section.client_id not in audiences:
        raise SignInRefusedError(
            f"The ID token is for {_short(audience)}; [oidc] client_id is {section.client_id!r}."
        )
    party = claims.get("azp")
    if (len(audiences) > 1 or party is not None) and party != section.client_id:
        raise SignInRefusedError(
            f"The ID token was made for the party {_short(party)} (azp); [oidc] client_id is {section.client_id!r}."
        )


def _read_keys(found: Mapping[str, Any]) -> Any:
    """Return the keys that may sign, without any that are secrets or for encryption."""
    from joserfc.errors import JoseError  # noqa: PLC0415 - of the extra `oidc`
    from joserfc.jwk import KeySet, import_key  # noqa: PLC0415

    listed = found.get("keys")
    keys: Sequence[Any] = listed if isinstance(listed, list) else []
    usable = []
    for key in keys[:_KEYS_MAX]:
        if (
            isinstance(key, dict)
            and key.get("kty") in _KEY_KINDS
            and key.get("use", "sig") == "sig"
        ):
            try:
                usable.append(import_key(key))
            except (JoseError, ValueError, TypeError) as error:  # the others may do
                log.debug("a key of the identity provider is not used: %s", error)
    if not usable:
        raise SignInRefusedError("The identity provider shows no key that signs ID tokens.", 502)
    return KeySet(usable)


def _make_context(section: OidcSection) -> ssl.SSLContext | bool:
    if urlsplit(section.issuer).scheme == "http":
        return True
    try:
        return ssl.create_default_context(cafile=section.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"[oidc] ca_file = {section.ca_file!r} can't be used: {error}") from error


def _check_endpoint(name: str, url: str, issuer: str) -> None:
    parts = urlsplit(url)
    is_local = urlsplit(issuer).scheme == "http" and is_loopback(parts.hostname or "")
    if not parts.hostname or (
        parts.scheme != "https" and not (parts.scheme == "http" and is_local)
    ):
        raise SignInRefusedError(
            f"The description of the issuer {issuer!r} has {name} = {_short(url)}, which is not https.",
            502,
        )


def _decode(body: bytes, kind: Any, url: str) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise SignInRefusedError(
            f"{url} does not answer as OpenID Connect says: {error}", 502
        ) from error


def _names_of(claims: Mapping[str, Any]) -> str:
    return f"It has: {', '.join(_short(name) for name in sorted(claims)[:40])}."


def _short(value: object) -> str:
    return printable(repr(value))[:120]

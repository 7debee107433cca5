"""An identity provider on loopback: its description, keys and tokens over HTTP, with real signatures. It does as a test says."""

import base64
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import msgspec
import urllib3
from joserfc import jwt
from joserfc.jwk import RSAKey

from recovery.service.controller_config import OidcGroup, OidcSection

CLIENT_ID = "rankmend"
SECRET = "s3cret/with+marks"
OUTSIDE = "https://ops.example/rankmend"  # where a proxy has the console
_KEYS = [RSAKey.generate_key(2048, {"kid": f"key-{number}", "use": "sig"}) for number in (1, 2)]


@dataclass
class Provider:
    """Its state, for the test to change."""

    url: str
    key: RSAKey = field(default_factory=lambda: _KEYS[0])
    shown: list[RSAKey] = field(default_factory=lambda: [_KEYS[0]])
    claims: dict[str, Any] = field(
        default_factory=dict
    )  # in place of the usual ones; None: without
    described: dict[str, Any] = field(default_factory=dict)
    sign: Callable[["Provider", dict[str, Any]], str] | None = None
    padding: int = 0  # bytes more in each answer
    moved_to: str = ""  # every answer leads there
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)

    def reset(self) -> None:
        """Do as usual again."""
        fresh = Provider(self.url)
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(fresh, name))

    def section(self, secret_file: str, **more: Any) -> OidcSection:
        values: dict[str, Any] = {
            "issuer": self.url,
            "client_id": CLIENT_ID,
            "client_secret_file": secret_file,
            "groups": (
                OidcGroup(group="operators", roles=("fleet-read", "act")),
                OidcGroup(group="people", roles=("read",)),
            ),
        }
        return OidcSection(**(values | more))

    def approve(self, url: str, **more: str) -> str:
        """Return where the browser goes after its person has signed in at the address ``url``."""
        asked = dict(parse_qsl(urlsplit(url).query))
        assert asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT_ID
        code = f"code-{len(self.codes)}"
        self.codes[code] = asked
        given = {"code": code, "state": asked["state"], "iss": self.url} | more
        return f"{asked['redirect_uri']}?{urlencode(given)}"

    def answer(self, path: str, form: dict[str, list[str]], authorization: str) -> tuple[int, Any]:
        self.asked[path] += 1
        if path == "/.well-known/openid-configuration":
            return 200, {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/keys",
            } | self.described
        if path == "/keys":
            return 200, {"keys": [key.as_dict(private=False) for key in self.shown]}
        if path == "/token":
            return self._redeem(form, authorization)
        return 404, {}

    def _redeem(self, form: dict[str, list[str]], authorization: str) -> tuple[int, Any]:
        given = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        if given != "rankmend:s3cret%2Fwith%2Bmarks":
            return 401, {"error": "invalid_client", "error_description": "no such client"}
        asked = self.codes.pop(form["code"][0], None)
        digest = hashlib.sha256(form["code_verifier"][0].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if (
            asked is None
            or challenge != asked["code_challenge"]
            or form["redirect_uri"][0] != asked["redirect_uri"]
        ):
            return 400, {"error": "invalid_grant"}
        now_s = int(time.time())
        claims = {
            "iss": self.url,
            "aud": CLIENT_ID,
            "sub": "248289761001",
            "exp": now_s + 300,
            "iat": now_s,
            "nonce": asked["nonce"],
            "preferred_username": "ann",
            "groups": ["people", "operators", "choir"],
        } | self.claims
        claims = {name: value for name, value in claims.items() if value is not None}
        text = self.sign(self, claims) if self.sign else sign_with(self.key, claims)
        return 200, {"access_token": "x", "token_type": "Bearer", "id_token": text}


def sign_with(key: RSAKey, claims: dict[str, Any]) -> str:
    return jwt.encode({"alg": "RS256", "kid": key.kid}, claims, key)


def other_key() -> RSAKey:
    """Return a key that the provider doesn't show at first."""
    return _KEYS[1]


@contextmanager
def running_provider() -> Iterator[Provider]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(parse_qs(body.decode()))

        def _answer(self, form: dict[str, list[str]]) -> None:
            path = urlsplit(self.path).path
            status, found = provider.answer(path, form, self.headers.get("Authorization", ""))
            if provider.moved_to:
                self.send_response(307)
                self.send_header("Location", provider.moved_to + path)
                self.end_headers()
                return
            body = json.dumps(found).encode() + b" " * provider.padding
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_given: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider = Provider(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join(300)


class Browser:
    """Keeps cookies, and follows nothing."""

    def __init__(self, pool: urllib3.PoolManager, url: str) -> None:
        self._pool = pool
        self.url = url
        self.cookies: dict[str, str] = {}

    def get(self, path: str) -> Any:
        answer = self._pool.request(
            "GET", self.url + path, headers=self._headers(), redirect=False, retries=False
        )
        self._take(answer)
        return answer

    def post(self, path: str, **fields: str) -> Any:
        answer = self._pool.request_encode_body(
            "POST",
            self.url + path,
            fields=fields,
            headers=self._headers(),
            encode_multipart=False,
            redirect=False,
            retries=False,
        )
        self._take(answer)
        return answer

    def begin(self, there: str = "/jobs") -> Any:
        return self.get(f"/sign-in/oidc?{urlencode({'next': there})}")

    def back(self, url: str) -> Any:
        """Go where the provider sends the browser: by way of the proxy to this controller."""
        assert url.startswith(f"{OUTSIDE}/sign-in/oidc/callback?"), url
        return self.get(url.removeprefix(OUTSIDE))

    def sign_in(self, provider: Provider, there: str = "/jobs") -> Any:
        return self.back(provider.approve(self.begin(there).headers["Location"]))

    @property
    def is_signed_in(self) -> bool:
        return bool(self.get("/jobs").status == 200)

    def _headers(self) -> dict[str, str]:
        text = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return {"Cookie": text} if text else {}

    def _take(self, answer: Any) -> None:
        for line in answer.headers.getlist("Set-Cookie"):
            pair = line.partition(";")[0]
            name, _equals, value = pair.partition("=")
            if value.strip('"'):
                self.cookies[name] = value
            else:
                self.cookies.pop(name, None)


def oidc_tables(provider: Provider, secret_file: str) -> str:
    """Return the tables of a controller's configuration."""
    section = msgspec.to_builtins(provider.section(secret_file))
    lines = ["", "[console]", f'url = "{OUTSIDE}"', "[oidc]"]
    lines += [
        f"{name} = {json.dumps(section[name])}"
        for name in ("issuer", "client_id", "client_secret_file")
    ]
    for entry in section["groups"]:
        lines += [
            "[[oidc.groups]]",
            f"group = {json.dumps(entry['group'])}",
            f"roles = {json.dumps(entry['roles'])}",
        ]
    return "\n".join(lines) + "\n"

"""TLS and client certificates on the agent's endpoint, with real keys and a real client."""

import shutil
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.config import EndpointTls
from agent.page.http_server import HttpServer, make_context, renewed_context
from rankmend.errors import ConfigError
from tests.support.authority import Authority, Lineage, openssl
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "site")


@pytest.fixture(scope="module")
def tls(authority: Authority) -> EndpointTls:
    cert, key = authority.issue("node")
    return EndpointTls(cert_file=str(cert), key_file=str(key))


def app(_environ: object, start_response: object) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])  # type: ignore[operator]
    return [b"page"]


@pytest.fixture
def server(tls: EndpointTls) -> Iterator[HttpServer]:
    server = HttpServer("127.0.0.1:0", app, tls)
    server.start()
    yield server
    server.stop()


def client_context(authority: Authority, client: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.cert))
    if client is not None:
        context.load_cert_chain(*map(str, client))
    return context


def fetch(port: int, context: ssl.SSLContext, scheme: str = "https") -> bytes:
    url = f"{scheme}://127.0.0.1:{port}/"
    handler = [urllib.request.HTTPSHandler(context=context)] if scheme == "https" else []
    with urllib.request.build_opener(*handler).open(url, timeout=DEADLINE_S) as answer:
        return answer.read()


def test_page_is_served_under_the_sites_own_certificate(
    server: HttpServer, authority: Authority
) -> None:
    assert fetch(server.port, client_context(authority)) == b"page"


def test_plain_http_is_not_answered_where_tls_is_configured(
    server: HttpServer, authority: Authority
) -> None:
    with pytest.raises(OSError):
        fetch(server.port, client_context(authority), scheme="http")

    assert fetch(server.port, client_context(authority)) == b"page"  # and the server lives on


def test_only_a_client_of_the_configured_authority_is_let_in(
    authority: Authority, tls: EndpointTls, tmp_path: Path
) -> None:
    ours, theirs = authority.issue("prometheus"), Authority(tmp_path, "other").issue("stranger")
    guarded = EndpointTls(
        cert_file=tls.cert_file, key_file=tls.key_file, client_ca_file=str(authority.cert)
    )
    server = HttpServer("127.0.0.1:0", app, guarded)
    server.start()
    try:
        for nobody in (None, theirs):
            with pytest.raises(OSError):
                fetch(server.port, client_context(authority, nobody))

        assert fetch(server.port, client_context(authority, ours)) == b"page"
    finally:
        server.stop()


def test_client_that_is_slow_to_shake_hands_holds_up_nobody_else(
    server: HttpServer, authority: Authority
) -> None:
    with socket.create_connection(("127.0.0.1", server.port)):
        assert fetch(server.port, client_context(authority)) == b"page"


def test_new_certificate_is_used_from_the_next_connection_on(
    server: HttpServer, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "next")
    cert, key = other.issue("node")
    fetch(server.port, client_context(authority))

    server.use(renewed_context(EndpointTls(cert_file=str(cert), key_file=str(key))))

    assert fetch(server.port, client_context(other)) == b"page"
    with pytest.raises(OSError):
        fetch(server.port, client_context(authority))


def test_nothing_older_than_tls_1_2_is_spoken(tls: EndpointTls) -> None:
    assert make_context(tls).minimum_version is ssl.TLSVersion.TLSv1_2


def test_files_that_cannot_be_used_are_named(tls: EndpointTls, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    missing = str(tmp_path / "missing.pem")

    for files, named in (
        (EndpointTls(cert_file=missing, key_file=tls.key_file), "missing.pem"),
        (EndpointTls(cert_file=str(broken), key_file=tls.key_file), "broken.pem"),
        (EndpointTls(cert_file=tls.cert_file, key_file=str(broken)), "broken.pem"),
        (
            EndpointTls(cert_file=tls.cert_file, key_file=tls.key_file, client_ca_file=str(broken)),
            "client_ca_file",
        ),
    ):
        with pytest.raises(ConfigError, match=named):
            make_context(files)


def test_key_with_a_passphrase_is_refused(
    authority: Authority, tls: EndpointTls, tmp_path: Path
) -> None:
    locked = tmp_path / "locked.key"
    openssl("ec", "-in", tls.key_file, "-aes128", "-passout", "pass:secret", "-out", locked)

    with pytest.raises(ConfigError, match=r"locked\.key"):
        make_context(EndpointTls(cert_file=tls.cert_file, key_file=str(locked)))


def test_renewed_certificate_is_taken_up_by_itself_once_it_is_whole(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    lineage, other = Lineage(tmp_path, "node"), Authority(tmp_path, "next")
    lineage.renew(*authority.issue("first"))
    tls = EndpointTls(cert_file=str(lineage.cert), key_file=str(lineage.key))
    server = HttpServer("127.0.0.1:0", app, tls, look_s=0.02)
    server.start()
    try:
        lineage.add(*other.issue("second"))
        lineage.turn(lineage.cert)
        eventually(lambda: "are not used" in caplog.text, "the look at half of the renewal")

        assert fetch(server.port, client_context(authority)) == b"page"
        lineage.turn(lineage.key)
        eventually(lambda: "are in force" in caplog.text, "the look at all of it")
        assert fetch(server.port, client_context(other)) == b"page"
        assert caplog.text.count("are not used") == 1
    finally:
        server.stop()

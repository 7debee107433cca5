"""Certificates and tokens that are renewed under a running client, as certbot and others do it."""

import shutil
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from rankmend.alerting import AlertError, make_get, make_post
from rankmend.errors import ConfigError
from rankmend.renewed_files import Renewed
from tests.support.authority import Authority, Lineage
from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.process

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")


@dataclass
class Receiver:
    """A receiver of alerts; who may speak to it can change."""

    server: HTTPServer
    names: list[str] = field(default_factory=list)  # of the clients, by their certificates
    tokens: list[str | None] = field(default_factory=list)

    def require(self, trusted: Authority, cert: Path, key: Path) -> None:
        """Show this certificate from the next connection on, and take none but of that authority."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(trusted.cert))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(cert, key)
        self.context = context


@contextmanager
def running_receiver(*, is_tls: bool) -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if isinstance(self.connection, ssl.SSLSocket):
                found = self.connection.getpeercert() or {}
                receiver.names += [one[0][1] for one in found["subject"]]  # type: ignore[misc]
            receiver.tokens.append(self.headers["Authorization"])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    class Server(HTTPServer):
        def get_request(self) -> tuple[object, object]:  # type: ignore[override]
            connection, address = super().get_request()
            connection.settimeout(DEADLINE_S)
            if not is_tls:
                return connection, address
            return receiver.context.wrap_socket(connection, server_side=True), address

    with Server(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(server)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


@needs_openssl
def test_sender_shows_its_renewed_certificate_and_believes_the_renewed_authority(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    lineage, ca = Lineage(tmp_path, "node"), tmp_path / "ca.crt"
    ca.write_bytes(old.cert.read_bytes())
    lineage.renew(*old.issue("n1"))
    with running_receiver(is_tls=True) as receiver:
        receiver.require(old, *old.issue("receiver"))
        url = f"https://127.0.0.1:{receiver.server.server_port}/"
        post = make_post(str(ca), str(lineage.cert), str(lineage.key))
        post(url, b"[]")

        receiver.require(new, *new.issue("renewed"))
        with pytest.raises(AlertError):
            post(url, b"[]")
        lineage.add(*new.issue("n2"))
        lineage.turn(lineage.cert)  # its key still belongs to the old one
        ca.write_bytes(new.cert.read_bytes() + old.cert.read_bytes())
        with pytest.raises(AlertError):
            post(url, b"[]")
        lineage.turn(lineage.key)
        post(url, b"[]")

    assert receiver.names == ["n1", "n2"]
    assert caplog.text.count("the old ones stay in force") == 1


def test_rotated_token_is_sent_and_one_that_is_open_to_others_is_not(tmp_path: Path) -> None:
    token = tmp_path / "alertmanager.token"

    def write(text: str, mode: int) -> None:
        beside = tmp_path / "new"
        beside.write_text(text)
        beside.chmod(mode)
        beside.replace(token)

    write("first", 0o600)
    with running_receiver(is_tls=False) as receiver:
        url = f"http://127.0.0.1:{receiver.server.server_port}/"
        post = make_post(token_file=str(token))
        post(url, b"[]")
        write("second", 0o644)
        post(url, b"[]")
        token.chmod(0o600)  # the same content and time: only its mode was wrong
        post(url, b"[]")
        token.unlink()
        post(url, b"[]")

    assert receiver.tokens == [f"Bearer {one}" for one in ("first", "first", "second", "second")]


def test_token_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.token"):
        make_get(token_file=str(tmp_path / "nothing.token"))


def test_files_are_read_again_only_when_they_have_changed(tmp_path: Path) -> None:
    file, readings = tmp_path / "file", []
    file.write_text("1")

    def make() -> str:
        readings.append(file.read_text())
        return readings[-1]

    renewed = Renewed([str(file)], make)
    renewed.look()
    before = list(readings)
    file.write_text("22")

    assert (renewed.look(), renewed.look(), renewed.value) == ("22", "22", "22")
    assert (before, readings) == (["1"], ["1", "22"])

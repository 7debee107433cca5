"""Certificates that do not hold now: refused at a reload, and never in the way of revoking a token."""

import re
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from rankmend.errors import ConfigError
from rankmend.files import replace_file
from recovery.api.operator_client import OperatorClient
from recovery.service.daemon import read
from recovery.service.http import authority
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.service import make_folder, running

pytestmark = pytest.mark.process


def out_of_date(folder: Path, *, begins_in_days: float, lasts_days: float) -> None:
    """Replace the server's certificate by one with other dates, of the same key and authority."""
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    old = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    begins = datetime.now(timezone.utc) + timedelta(days=begins_in_days)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(days=lasts_days))
    )
    made = builder.sign(key, hashes.SHA256())  # type: ignore[arg-type]
    (folder / "server.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))


@pytest.mark.parametrize(
    ("begins_in_days", "said"), [(-2.0, "expired at"), (2.0, "not valid before")]
)
def test_reload_refuses_a_certificate_that_does_not_hold_now_and_keeps_the_old(
    tmp_path: Path, begins_in_days: float, said: str
) -> None:
    folder = tmp_path / "files"
    make_folder(folder)
    with running(folder) as up:
        before = up.service.measures.certificate_s._value.get()
        out_of_date(folder, begins_in_days=begins_in_days, lasts_days=1.0)

        with pytest.raises(ConfigError, match=rf"server.crt .*{said}"):
            up.thread.reload(*read(folder / "controller.toml"))

        assert up.client("admin").jobs() == []  # a new connection, by the old certificate
        assert up.service.measures.certificate_s._value.get() == before


def test_certificate_that_ran_out_in_force_keeps_no_token_from_being_revoked(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "files"
    make_folder(folder)
    out_of_date(folder, begins_in_days=-2.0, lasts_days=1.0)
    with running(folder) as up:
        up.thread.reload(*read(folder / "controller.toml"))


def test_authority_of_which_one_certificate_holds_is_enough(tmp_path: Path) -> None:
    ca = (tmp_path / "ca.crt", tmp_path / "ca.key")
    authority.make_authority(*ca, "x")
    late_s = (datetime.now(timezone.utc) + timedelta(days=4000)).timestamp()

    authority.refuse_out_of_date(str(ca[0]), str(ca[0]), datetime.now(timezone.utc).timestamp())
    with pytest.raises(ConfigError, match="expired"):
        authority.refuse_out_of_date(str(ca[0]), None, late_s)


@contextmanager
def controller_process(config: Path) -> Iterator[Callable[[], str]]:
    """Run `rankmend controller run`, and give what reads its log."""
    log = config.parent / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "rankmend.cli", "controller", "run", "--config", str(config)],
            stderr=output,
        )
    try:
        yield log.read_text
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def shown_by(port: int) -> bytes:
    """Return the certificate that a controller shows to a new connection."""
    return ssl.PEM_cert_to_DER_cert(
        ssl.get_server_certificate(("127.0.0.1", port), timeout=DEADLINE_S)
    )


def renew(folder: Path) -> tuple[bytes, bytes]:
    """Return another certificate of the server and its key, as a renewal makes them."""
    made = folder / "renewal"
    made.mkdir()
    ca = (folder / "ca.crt", folder / "ca.key")
    authority.make_server(ca, made / "server.crt", made / "server.key", ["127.0.0.1"])
    return (made / "server.crt").read_bytes(), (made / "server.key").read_bytes()


def test_running_controller_takes_up_a_renewed_certificate_by_itself_once_it_is_whole(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "files"
    config = make_folder(folder)
    cert, key = renew(folder)
    with controller_process(config) as log:
        eventually(lambda: "controller started" in log(), "the start")
        found = re.search(r'"controller started" port=(\d+)', log())
        assert found is not None
        port, first = int(found[1]), shown_by(int(found[1]))

        (folder / "tokens.toml").write_bytes(b"")  # a person is at work there
        replace_file(folder / "server.crt", cert, ConfigError)
        eventually(lambda: "certificate is not used" in log(), "the look at half of the renewal")
        between = shown_by(port)
        replace_file(folder / "server.key", key, ConfigError)
        eventually(lambda: "certificate is in force" in log(), "the look at all of it")

        assert (between, shown_by(port)) == (first, ssl.PEM_cert_to_DER_cert(cert.decode()))
        client = OperatorClient(
            [f"https://127.0.0.1:{port}"],
            ca_file=folder / "ca.crt",
            token_file=folder / "admin.token",
        )
        assert client.jobs() == []  # all else takes effect at a reload
        client.close()
        assert log().count("certificate is not used") == 1

"""Certificates that do not hold now: refused at a reload, and never in the way of revoking a token."""

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from rankmend.errors import ConfigError
from recovery.service import authority
from recovery.service.daemon import read
from tests.support.service import make_folder, running


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


@pytest.mark.real
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


@pytest.mark.real
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

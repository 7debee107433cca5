"""TLS by libpq's own parameters in the address, and the password from its file."""

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankmend.clock import SystemClock
from rankmend.errors import RankmendError
from recovery.journal.postgres.database import Database
from recovery.journal.postgres.database_url import read_database_url
from recovery.service.http.authority import make_authority, make_server
from tests.support.postgres import PostgresServer, running_server

pytestmark = pytest.mark.site


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PostgresServer, Path]]:
    """A server with a certificate for localhost, which wants TLS and a password of every role but the administrator."""
    files = tmp_path_factory.mktemp("tls")
    make_authority(files / "ca.crt", files / "ca.key", "test")
    make_server(
        (files / "ca.crt", files / "ca.key"), files / "s.crt", files / "s.key", ["localhost"]
    )
    with running_server() as server:
        for name in ("s.crt", "s.key"):
            target = server.folder / name
            target.write_bytes((files / name).read_bytes())
            target.chmod(0o600)
            if os.getuid() == 0:
                user = pwd.getpwnam("postgres")
                os.chown(target, user.pw_uid, user.pw_gid)
        (server.data / "pg_hba.conf").write_text(
            "host all admin 127.0.0.1/32 trust\nhostssl all controller 127.0.0.1/32 scram-sha-256\n"
        )
        server.ask("postgres", "ALTER ROLE controller PASSWORD 's3cret'")
        server.stop()
        server.start(
            ssl="on",
            ssl_cert_file=str(server.folder / "s.crt"),
            ssl_key_file=str(server.folder / "s.key"),
        )
        yield server, files


def connect(text: str, password_file: Path) -> list[tuple[object, ...]]:
    database = Database(read_database_url(text, str(password_file)), SystemClock())
    database.open()
    try:
        return database.read("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    finally:
        database.close()


def write_password(folder: Path, text: str) -> Path:
    path = folder / "password"
    path.write_text(f"{text}\n")
    path.chmod(0o600)
    return path


def address(secured: tuple[PostgresServer, Path], host: str, database: str = "postgres") -> str:
    server, files = secured
    return (
        f"postgresql://controller@{host}:{server.port}/{database}"
        f"?sslmode=verify-full&sslrootcert={files}/ca.crt"
    )


def test_a_server_whose_certificate_is_right_is_spoken_to_by_tls(
    secured: tuple[PostgresServer, Path], tmp_path: Path
) -> None:
    password = write_password(tmp_path, "s3cret")

    assert connect(address(secured, "localhost"), password) == [(True,)]


def test_a_server_with_a_certificate_for_another_name_is_refused(
    secured: tuple[PostgresServer, Path], tmp_path: Path
) -> None:
    password = write_password(tmp_path, "s3cret")

    with pytest.raises(RankmendError, match="does not match host name"):
        connect(address(secured, "127.0.0.1"), password)


def test_a_wrong_password_is_refused_and_not_shown(
    secured: tuple[PostgresServer, Path], tmp_path: Path
) -> None:
    password = write_password(tmp_path, "wr0ng")

    with pytest.raises(RankmendError, match="password authentication failed") as refused:
        connect(address(secured, "localhost"), password)

    assert "wr0ng" not in str(refused.value)

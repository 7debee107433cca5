"""The address of the database: what is accepted, and that no password is ever shown."""

from pathlib import Path

import pytest

from rankmend.errors import ConfigError
from recovery.journal.postgres.database_url import check_database_url, read_database_url


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://rankmend@db.example/rankmend",
        "postgresql://rankmend@a:5432,b:5433/rankmend?sslmode=verify-full&sslrootcert=/etc/ca.crt",
        "postgres:///rankmend?host=/run/postgresql",
    ],
)
def test_an_address_is_kept_as_it_is(text: str) -> None:
    assert str(read_database_url(text, None)) == text


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("postgresql://rankmend:s3cret@db/rankmend", "password in it"),
        ("postgresql://rankmend@db/rankmend?password=s3cret", "password in it"),
        ("postgresql://rankmend@db/rankmend?sslpassword=s3cret", "password in it"),
        ("postgresql://rankmend:s3cret@[db/rankmend", "no URL"),
        ("mysql://s3cret@db/rankmend", "must be postgresql://"),
        ("host=db password=s3cret", "must be postgresql://"),
        ("postgresql://rankmend@db", "names no database"),
        ("postgresql://rankmend@db/rankmend?options=-csynchronous_commit=off", "sets options"),
        ("postgresql://rankmend@db/rankmend?target_session_attrs=any", "sets target_session_attrs"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_showing_a_password(
    text: str, what: str
) -> None:
    with pytest.raises(ConfigError, match=what) as refused:
        check_database_url(text)

    assert "s3cret" not in str(refused.value)


def test_the_password_comes_from_a_file_and_is_in_no_text_of_the_address(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret\n")
    file.chmod(0o600)

    url = read_database_url("postgresql://rankmend@db/rankmend", str(file))

    assert url.credentials() == {"password": "s3cret"}
    assert "s3cret" not in f"{url} {url!r}"


@pytest.mark.parametrize(
    ("content", "mode", "what"),
    [
        (b"s3cret\n", 0o640, "mode 0600"),
        (b"", 0o600, "one line"),
        (b"s3cret\nmore\n", 0o600, "one line"),
        (b"\xff\n", 0o600, "not UTF-8"),
    ],
)
def test_a_password_file_that_others_read_or_that_is_broken_is_refused(
    tmp_path: Path, content: bytes, mode: int, what: str
) -> None:
    file = tmp_path / "password"
    file.write_bytes(content)
    file.chmod(mode)

    with pytest.raises(ConfigError, match=what) as refused:
        read_database_url("postgresql://rankmend@db/rankmend", str(file))

    assert "s3cret" not in str(refused.value)

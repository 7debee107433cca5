"""A controller without tokens: a page of another site in a browser on its machine gets nothing done there."""

import pytest

from recovery.service.http.access import names_loopback, refuse_foreign_pages
from recovery.service.roles import DeniedError


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("127.0.0.1:9477", True),
        ("localhost:9477", True),
        ("localhost", True),
        ("[::1]:9477", True),
        ("evil.example:9477", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
def test_only_names_of_loopback_lead_here(host: str, *, is_own: bool) -> None:
    assert names_loopback(host) is is_own


@pytest.mark.parametrize(
    "headers",
    [
        {},  # a launcher, curl, Prometheus
        {"Origin": "http://localhost:9477"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "null"},
        {"Sec-Fetch-Site": "none"},  # typed by a person
    ],
)
def test_programs_and_pages_of_its_own_are_served(headers: dict[str, str]) -> None:
    refuse_foreign_pages(headers, "localhost:9477")


@pytest.mark.parametrize(
    ("headers", "host"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, "localhost:9477"),
        ({"Sec-Fetch-Site": "same-site"}, "localhost:9477"),  # another port of this machine
        ({"Origin": "https://evil.example"}, "localhost:9477"),
        ({"Origin": "null"}, "localhost:9477"),
        ({}, "evil.example:9477"),  # a name that leads to 127.0.0.1
    ],
)
def test_pages_of_other_sites_are_refused(headers: dict[str, str], host: str) -> None:
    with pytest.raises(DeniedError):
        refuse_foreign_pages(headers, host)

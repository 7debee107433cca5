"""The messages by which a launcher shows the agent its ranks, and where the agent is looked for."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmend.agent_socket import (
    MESSAGE_BYTES_MAX,
    Offer,
    OfferedRank,
    decode,
    encode,
    socket_paths,
)
from rankmend.errors import SourceError
from tests.support.agent import PATIENT, message

NUMBERS = st.integers(min_value=0, max_value=2**32 - 1)
OFFERS = st.builds(
    Offer,
    job_id=st.uuids(),
    job_name=st.text(max_size=128).filter(str.isprintable),
    attempt=NUMBERS,
    ranks=st.lists(
        st.builds(OfferedRank, rank=NUMBERS, local_rank=NUMBERS, pid=NUMBERS),
        min_size=1,
        max_size=253,
        unique_by=lambda rank: rank.rank,
    ).map(tuple),
)


@PATIENT
@given(OFFERS)
def test_offer_survives_its_message(offer: Offer) -> None:
    assert decode(encode(offer)) == offer


@PATIENT
@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(SourceError):
        decode(data)


RANK = {"rank": 0, "local_rank": 0, "pid": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"version": True},
        {"job_id": "no-uuid"},
        {"job_id": 7},
        {"job_name": "a\nb"},
        {"job_name": "x" * 129},
        {"job_name": "\ud800"},
        {"attempt": -1},
        {"attempt": True},
        {"attempt": 1.0},
        {"attempt": 2**32},
        {"ranks": {}},
        {"ranks": [RANK] * 2},
        {"ranks": [{**RANK, "rank": number} for number in range(254)]},
        {"ranks": [{"rank": 0, "local_rank": 0}]},
        {"ranks": [{**RANK, "extra": 1}]},
        {"ranks": [{**RANK, "pid": "1"}]},
        {"extra": 1},
    ],
)
def test_message_that_breaks_the_form_is_refused(changes: dict[str, object]) -> None:
    assert decode(message()).ranks == (OfferedRank(0, 0, 4242),)

    with pytest.raises(SourceError):
        decode(message(**changes))


@pytest.mark.parametrize(
    "data", [b"[" * 30000, b"9" * 10000, b"{}", b"null", b" " * (MESSAGE_BYTES_MAX + 1)]
)
def test_message_made_to_hurt_the_parser_is_refused(data: bytes) -> None:
    with pytest.raises(SourceError):
        decode(data)


def test_agent_is_looked_for_at_the_service_first_and_then_at_the_users() -> None:
    assert socket_paths({}) == (Path("/run/rankmend/agent.sock"),)
    assert socket_paths({"XDG_RUNTIME_DIR": "/run/user/7"})[1] == Path(
        "/run/user/7/rankmend/agent.sock"
    )

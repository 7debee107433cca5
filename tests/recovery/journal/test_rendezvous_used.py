"""Where attempts have met: no new attempt meets there, and a job of thousands of attempts does not remember all of them."""

from dataclasses import replace

from recovery.journal.fold.entry_fold import fold_all
from recovery.messages.exchange import Endpoint
from tests.support.goodput_jobs import BEGIN, FIRST, Timed, entries_of


def test_places_of_the_newest_attempts_are_remembered_and_no_more() -> None:
    ports = range(20_000, 20_600)
    met: list[Timed] = [
        (20.0 + at, replace(FIRST, attempt=2 + at, rendezvous=Endpoint("n1", port)))
        for at, port in enumerate(ports)
    ]

    used = fold_all(entries_of(*BEGIN, *met)).rendezvous_used

    assert used[-1] == ("n1", 20_599)
    assert used == tuple(("n1", port) for port in range(20_600 - len(used), 20_600))
    assert 100 <= len(used) < 600

"""Windows of maintenance: times that are a likely slip are refused."""

import pytest

from rankmend.errors import ConfigError
from recovery.controller.cluster.cluster import WINDOW_S_MAX
from recovery.controller.cluster.cluster_limits import ClusterPolicy
from recovery.journal.cluster_records import WindowAdded
from tests.support.cluster_desk import NOW, make_desk


@pytest.mark.parametrize(
    ("from_s", "until_s", "said"),
    [
        (NOW * 1000, NOW * 1000 + 7_200_000, "seems to be milliseconds"),
        (NOW, NOW * 1000, "until_unix_s is .* milliseconds"),
        (0.0, NOW + 60.0, "from_unix_s is 0, more than 3653 days from now"),
        (1e14, 1e14 + 60, "seconds since 1970"),
    ],
)
def test_window_in_no_year_of_ours_is_refused_with_the_likely_slip(
    from_s: float, until_s: float, said: str
) -> None:
    desk, journal, _clock = make_desk(ClusterPolicy())

    with pytest.raises(ConfigError, match=said):
        desk.add_window(WindowAdded("w1", ("n1",), from_s, until_s, "ops", ""))
    assert journal.entries == []


def test_window_of_the_longest_kind_is_still_one() -> None:
    desk, _journal, _clock = make_desk(ClusterPolicy())

    desk.add_window(WindowAdded("w1", ("n1",), NOW, NOW + WINDOW_S_MAX, "ops", ""))

    assert set(desk.ledger.windows) == {"w1"}

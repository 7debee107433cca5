"""`rankmend status`, of whatever a controller has stored."""

from hypothesis import given
from hypothesis import strategies as st

from rankmend.cli import output, reader, status_view
from recovery.api import wire

ODD = st.floats() | st.sampled_from([1.8e12, -1.0, 1e308, float("nan")])
TEXTS = st.text(max_size=20)


@given(
    windows=st.lists(st.builds(wire.WindowView, TEXTS, st.lists(TEXTS, max_size=3), ODD, ODD, TEXTS, TEXTS), max_size=3),
    held=st.lists(st.builds(wire.HoldView, TEXTS, TEXTS, TEXTS, TEXTS, st.none() | ODD), max_size=3),
    nodes=st.lists(
        st.builds(
            wire.NodeView, TEXTS, TEXTS, st.none() | ODD, st.integers(),
            st.lists(st.integers(), max_size=4), st.booleans(), TEXTS, st.none() | TEXTS,
        ),
        max_size=3,
    ),
    plans=st.lists(st.builds(wire.PlanView), max_size=2),
    jobs=st.lists(st.builds(wire.JobView), max_size=2),
)  # fmt: skip
def test_no_stored_data_keeps_status_from_being_shown(
    windows: list[wire.WindowView],
    held: list[wire.HoldView],
    nodes: list[wire.NodeView],
    plans: list[wire.PlanView],
    jobs: list[wire.JobView],
) -> None:
    cluster = wire.Cluster([], held, windows, [])
    picture = reader.Picture("https://c", jobs, nodes, plans, cluster)
    wanted = reader.Wanted(None, with_ended=False, every_node=True)
    console = output.console(is_wide=True)

    with console.capture() as shown:
        console.print(status_view.render(picture, wanted))

    assert "https://c" in shown.get()
    assert status_view._lines(picture)

"""`rankmend status`, of whatever a controller has stored."""

from hypothesis import given
from hypothesis import strategies as st

from rankmend.cli import output
from rankmend.cli.screens import status_view
from rankmend.cli.sources.picture import Picture, Wanted
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
    picture = Picture("https://c", jobs, nodes, plans, cluster)
    wanted = Wanted(None, with_ended=False, every_node=True)
    console = output.console(is_wide=True)

    with console.capture() as shown:
        console.print(status_view.render(picture, wanted))

    assert "https://c" in shown.get()
    assert status_view._lines(picture)


def job_of(number: int, state: str) -> wire.JobView:
    return wire.JobView(
        f"id-{number}", f"job-{number}", "ann", state, 1, 8, 1, 0, 0, 7, 0, None, None
    )


def shown_of(jobs: list[wire.JobView], plans: list[wire.PlanView], **wanted: bool) -> list[str]:
    picture = Picture("https://c", jobs, [], plans, wire.Cluster([], [], [], []))
    console = output.console(is_wide=True)
    with console.capture() as shown:
        asked = Wanted(None, with_ended=wanted.get("every", False), every_node=False)
        console.print(status_view.render(picture, asked))
    return [line.rstrip() for line in shown.get().splitlines()]


def test_of_many_jobs_those_that_need_a_person_come_first_and_the_rest_is_counted() -> None:
    jobs = [job_of(number, "running") for number in range(100)]
    jobs[60], jobs[70], jobs[80] = (
        job_of(60, "recovering"),
        job_of(70, "waiting"),
        job_of(80, "done"),
    )
    plan = wire.PlanView("id-90", "job-90", "i-90", 1, "restart", "why", "leave", "ask first")

    lines = shown_of(jobs, [plan])

    heads = [line.split()[0] for line in lines if line.startswith("job-")]
    assert heads[:4] == ["job-70", "job-90", "job-60", "job-0"]
    assert len(heads) == 40
    assert "100 jobs: 97 running, 1 waiting, 1 recovering, 1 done" in lines
    assert "and 60 more jobs: 59 running, 1 done (--all, or a job's name)" in lines
    assert any("rankmend approve i-90, or reject" in line for line in lines)
    every = shown_of(jobs, [plan], every=True)
    assert len([line for line in every if line.startswith("job-")]) == 100


def test_an_open_incident_shows_since_when_the_job_is_down_and_what_it_costs() -> None:
    job = job_of(1, "recovering")
    job.down_s = 84.0
    job.checkpoint = wire.CheckpointView(
        "/ckpt/step_300.pt", "torch", 300, 100, 60.0, None, 1, None, None, "", None, None, None, None, 0,
        0.0, 1.0, 1.0, None, None, None, "", "",
    )  # fmt: skip

    lines = shown_of([job], [])

    assert "  down 84 s so far, 8 ranks idle" in lines, (
        "what it restores is not decided: memory may have more"
    )
    assert any("step 300 (100 steps ago)" in line for line in lines)


def test_of_a_job_whose_journal_can_not_be_read_no_number_is_shown() -> None:
    job = job_of(1, "not managed")
    job.problem, job.attempt, job.world_size, job.nodes = "the journal is damaged", 0, 0, 0

    lines = shown_of([job], [])

    assert lines[1].split("  ") == ["job-1", "not managed"]
    assert "  the journal is damaged" in lines


def test_a_node_that_is_held_back_is_no_spare() -> None:
    job = job_of(1, "running")
    nodes = [
        wire.NodeView(name, "id-1", 1.0, 1, [], True, "boot", held)
        for name, held in (("a", None), ("b", "silent"))
    ]
    picture = Picture("https://c", [job], nodes, [], wire.Cluster([], [], [], []))

    assert status_view._spares(picture) == {"id-1": 1}


def test_a_finding_that_already_explains_a_nodes_state_is_shown_once() -> None:
    lost = "RankmendGpuLost: GPU 0 has fallen off the bus"
    node = wire.NodeView("a", "id-1", 1.0, 1, [], True, "boot", lost)
    found = [
        wire.NodeFindingView("a", check, "critical", "", summary, "", 1000.0)
        for check, summary in (
            ("RankmendGpuLost", "GPU 0 has fallen off the bus"),
            ("RankmendNicDown", "mlx5_0 is down"),
        )
    ]
    cluster = wire.Cluster([], [], [], [], findings=found)
    picture = Picture("https://c", [job_of(1, "running")], [node], [], cluster)
    console = output.console(is_wide=True)

    with console.capture() as shown:
        console.print(status_view.render(picture, Wanted(None, with_ended=False, every_node=True)))

    text = " ".join(shown.get().split())
    assert f"held back, {lost}; RankmendNicDown: mlx5_0 is down" in text
    assert text.count(lost) == 1


def test_a_list_of_nodes_that_no_controller_gives_is_refused_by_name() -> None:
    picture = Picture(None, [job_of(1, "running")], [], [], wire.Cluster([], [], [], []), "/s")
    console = output.console(is_wide=True)

    with console.capture() as shown:
        console.print(status_view.render(picture, Wanted(None, with_ended=False, every_node=True)))

    assert "--controller" in shown.get()


def test_a_plan_that_waits_for_a_node_names_the_one_and_its_reason_once() -> None:
    why = "0 of 1 nodes are there and may be used (a: drained by ann: fan)"
    job = job_of(1, "waiting")
    job.reason = f"rank 1 failed: SIGKILL; waits: {why}"
    plan = wire.PlanView(
        "id-1", "job-1", "i-1", 1, "move", "why", "wait", why, ["a"], waits_for="nodes"
    )
    node = wire.NodeView("a", "id-1", 1.0, 1, [0], False, "boot", "drained by ann: fan")
    picture = Picture("https://c", [job], [node], [plan], wire.Cluster([], [], [], []))
    console = output.console(is_wide=True)

    with console.capture() as shown:
        console.print(status_view.render(picture, Wanted(None, with_ended=False, every_node=False)))

    assert shown.get().count(why) == 1
    assert "move leaving a waits (rankmend resume --node a returns one to service)" in shown.get()


def test_list_of_all_jobs_does_not_advise_to_list_them() -> None:
    assert "no running job" in shown_of([job_of(1, "done")], [], every=True)

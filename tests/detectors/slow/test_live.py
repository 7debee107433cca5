"""Who is slow in a running job: simulated synchronous jobs whose every step is known."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.slow.live import SlowLive, Steps
from detectors.slow.live_look import LiveLimits, SlowLook

LOOK_S = 2.0
NO_ACTIVE: frozenset[int] = frozenset()


@dataclass
class SimJob:
    """A job whose steps end together: who works less waits more."""

    world_size: int
    step_s: float = 0.2  # of which a tenth is transfer
    noise: float = 0.03
    seed: int = 1
    tells_waiting: bool = True
    live: SlowLive = field(init=False)
    step: int = 0

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.live = SlowLive(self.world_size, LiveLimits())
        self.totals = np.zeros((self.world_size, 4))
        self.level = np.ones(self.world_size)  # unequal work by design
        self.now_s = 0.0

    def run(
        self,
        steps: int,
        *,
        slow: dict[int, float] | None = None,
        section: str = "compute",
        everyone: float = 1.0,
        active: frozenset[int] = NO_ACTIVE,
    ) -> list[SlowLook]:
        """Return the looks at so many more steps, in which some ranks' work takes longer."""
        looks = []
        for _ in range(steps):
            self.step += 1
            own = np.zeros((3, self.world_size))
            own[0] = 0.8 * self.step_s * self.level * everyone
            own[1] = own[2] = 0.05 * self.step_s * everyone
            own *= np.exp(self.noise * self.random.standard_normal(own.shape))
            for rank, factor in (slow or {}).items():
                extra = (factor - 1) * own[:, rank].sum()
                own[("compute", "communication", "io").index(section), rank] += extra
            ends_s = float(own.sum(axis=0).max()) + 0.1 * self.step_s
            waited = ends_s - own.sum(axis=0)
            self.totals[:, 0] += own[1] + waited
            self.totals[:, 1] += waited if self.tells_waiting else 0.0
            self.totals[:, 2] += own[2]
            self.now_s += ends_s
            self.live.add_steps(self.told(ends_s))
            look = self.live.look(self.now_s, active)
            if look is not None:
                looks.append(look)
        return looks

    def told(self, duration_s: float) -> Steps:
        every = np.ones(self.world_size, dtype=np.int64)
        return Steps(
            ranks=np.arange(self.world_size),
            numbers=every * self.step,
            steps=every * (self.step + 700),
            durations_s=every * duration_s,
            totals_s=self.totals.copy(),
        )


def _named(looks: list[SlowLook]) -> set[int]:
    return {one.rank for look in looks for one in look.slow}


@given(
    world_size=st.sampled_from([2, 3, 4, 8, 64, 512]),
    factor=st.sampled_from([1.15, 1.25, 1.5, 2.5]),
    noise=st.sampled_from([0.0, 0.01, 0.03]),
    section=st.sampled_from(["compute", "communication", "io"]),
    healthy=st.integers(40, 120),
    seed=st.integers(0, 1000),
)
def test_one_slow_rank_is_named_with_its_section_and_onset_and_nobody_else(
    world_size: int, factor: float, noise: float, section: str, healthy: int, seed: int
) -> None:
    job = SimJob(world_size, noise=noise, seed=seed)
    culprit = seed % world_size
    before = job.run(healthy)

    looks = job.run(60, slow={culprit: factor}, section=section)

    assert _named(before) == set()
    assert _named(looks) == {culprit}
    slow = [one for look in looks for one in look.slow]
    is_faint = (
        factor < 1.2 and noise > 0.02
    )  # more is left to chance: 4 of 7 were missed at most in 1,336 jobs
    missed_max = 4 if is_faint else 2  # the look with the onset, and one by chance
    assert len(slow) >= len(looks) - missed_max
    assert {one.section for one in slow} == {section}
    assert not any(one.is_always for one in slow)
    assert abs(slow[-1].onset_step - (700 + healthy + 1)) <= (10 if is_faint else 2)
    assert slow[-1].factor == pytest.approx(factor, rel=0.1)


@pytest.mark.parametrize("world_size", [2, 3, 8, 4096])
@pytest.mark.parametrize("section", ["compute", "io"])
def test_rank_that_was_slow_from_the_start_is_named(world_size: int, section: str) -> None:
    looks = SimJob(world_size).run(60, slow={1: 1.6}, section=section)

    assert _named(looks) == {1}
    assert all(one.is_always and one.section == section for look in looks for one in look.slow)


def test_ranks_of_a_pipeline_that_always_differ_are_not_named_and_one_that_changes_is() -> None:
    job = SimJob(4)
    job.level = np.array([1.1, 1.0, 1.0, 1.5])
    job.live.does_same_work = False

    assert _named(job.run(100)) == set()
    assert _named(job.run(60, slow={3: 1.3})) == {3}


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_nobody_is_named_when_everyone_becomes_slower(world_size: int) -> None:
    job = SimJob(world_size)
    job.run(60)

    assert _named(job.run(100, everyone=2.0)) == set()


def test_nobody_is_named_when_half_of_the_ranks_and_more_become_slower() -> None:
    job = SimJob(8)
    job.run(60)

    assert _named(job.run(60, slow=dict.fromkeys(range(5), 1.5))) == set()


def test_rank_that_is_slower_by_little_is_not_named() -> None:
    job = SimJob(4)
    job.run(60)

    assert _named(job.run(60, slow={1: 1.04})) == set()


def test_single_long_steps_and_steps_of_a_checkpoint_name_nobody() -> None:
    job = SimJob(4)
    named = _named(job.run(40))
    for _ in range(10):
        named |= _named(job.run(9))
        named |= _named(job.run(1, slow={0: 2.0}))
        job.totals[0, 3] += 1.0
        named |= _named(job.run(1, slow={0: 8.0}))

    assert named == set()


def test_rank_that_is_better_again_is_named_down_to_half_of_the_limit_and_then_no_more() -> None:
    job = SimJob(4, noise=0.01)
    job.run(60)
    assert _named(job.run(60, slow={2: 1.5})) == {2}
    active = frozenset({2})

    assert _named(job.run(40, slow={2: 1.08}, active=active)[1:]) == {2}
    assert _named(job.run(60, active=active)[1:]) == set()


def test_scripts_that_tell_no_waiting_are_judged_by_the_rest_of_the_step() -> None:
    job = SimJob(4, tells_waiting=False)
    job.run(60)

    assert _named(job.run(60, slow={2: 1.5}, section="io")) == {2}
    assert _named(job.run(60, slow={1: 1.5}, section="communication")) == set()


def test_reports_that_repeat_or_leave_steps_out_change_nothing_that_was_told() -> None:
    job = SimJob(4)
    job.run(40)
    again = job.told(0.2)
    job.live.add_steps(again)
    job.step += 5  # lost: the next record has no neighbour
    job.totals += 50.0

    assert _named(job.run(40)) == set()
    assert _named(job.run(60, slow={1: 1.5})) == {1}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(1, 9),
            st.integers(-3, 2**62),
            st.floats(allow_nan=True, allow_infinity=True),
            st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=4, max_size=4),
        ),
        max_size=30,
    )
)
def test_hostile_reports_raise_nothing(
    rows: list[tuple[int, int, int, float, list[float]]],
) -> None:
    live = SlowLive(4)
    rows.sort(key=lambda row: row[:2])

    with np.errstate(all="ignore"):
        live.add_steps(
            Steps(
                ranks=np.array([row[0] for row in rows], dtype=np.int64),
                numbers=np.array([row[1] for row in rows], dtype=np.int64),
                steps=np.array([row[2] for row in rows], dtype=np.int64),
                durations_s=np.array([row[3] for row in rows]),
                totals_s=np.array([row[4] for row in rows]).reshape(len(rows), 4),
            )
        )
        live.look(0.0)
        live.look(100.0)


@pytest.mark.parametrize(
    "world_size",
    [2, *(pytest.param(ranks, marks=pytest.mark.thorough) for ranks in (8, 64))],
)
def test_healthy_jobs_of_noisy_steps_name_nobody_in_many_hours(world_size: int) -> None:
    named = 0
    for seed in range(8):
        looks = SimJob(world_size, noise=0.05, seed=seed).run(1000)
        named += sum(len(look.slow) for look in looks)

    assert named == 0


@pytest.mark.parametrize("world_size", [2, pytest.param(8, marks=pytest.mark.thorough)])
def test_steps_that_vary_by_half_name_a_rank_in_no_more_than_single_looks(world_size: int) -> None:
    looks = [
        look for seed in range(20) for look in SimJob(world_size, noise=0.5, seed=seed).run(300)
    ]

    assert sum(len(look.slow) for look in looks) <= len(looks) // 50, "four of five are needed"

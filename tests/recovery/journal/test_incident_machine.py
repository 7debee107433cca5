import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmend.errors import IllegalEventError
from recovery.journal.incident_machine import (
    ACTING,
    ENDED,
    NEXT,
    Event,
    IncidentState,
    Outcome,
    Phase,
    command_for,
    expected_answer,
    step,
)

pytestmark = pytest.mark.safety

ALL_PAIRS = list(itertools.product(Phase, Outcome))
ROOT = Path(__file__).parents[3]


def event_for(state: IncidentState, outcome: Outcome) -> Event:
    return Event(state.incident_id, outcome, expected_answer(state), "because")


@pytest.mark.parametrize(("phase", "outcome"), ALL_PAIRS)
def test_every_pair_outside_the_table_is_refused_and_every_pair_inside_moves(
    phase: Phase, outcome: Outcome
) -> None:
    state = IncidentState("inc-1", tries_max=3, phase=phase)

    if (phase, outcome) not in NEXT:
        with pytest.raises(IllegalEventError, match="does not fit"):
            step(state, event_for(state, outcome))
    else:
        assert step(state, event_for(state, outcome)).phase is NEXT[phase, outcome]


@pytest.mark.parametrize(("phase", "outcome"), list(NEXT))
def test_an_answer_to_another_command_is_refused(phase: Phase, outcome: Outcome) -> None:
    state = IncidentState("inc-1", tries_max=3, try_number=2, phase=phase)

    with pytest.raises(IllegalEventError):
        step(state, Event("inc-1", outcome, "inc-1/1/verifying", "late"))
    with pytest.raises(IllegalEventError):
        step(state, Event("inc-2", outcome, expected_answer(state), "another's"))


def test_a_repeated_event_is_refused() -> None:
    state = IncidentState("inc-1", tries_max=3)
    accepted = event_for(state, Outcome.ACCEPTED)
    after = step(state, accepted)

    with pytest.raises(IllegalEventError):
        step(after, accepted)


def test_a_failed_fence_escalates_although_tries_are_left() -> None:
    state = IncidentState("inc-1", tries_max=3, phase=Phase.FENCING)

    assert step(state, event_for(state, Outcome.FAILED)).phase is Phase.ESCALATED


@pytest.mark.parametrize("phase", [Phase.RESTORING, Phase.VERIFYING])
def test_the_last_try_escalates_and_the_one_before_does_not(phase: Phase) -> None:
    last = IncidentState("inc-1", tries_max=3, try_number=3, phase=phase)
    before = IncidentState("inc-1", tries_max=3, try_number=2, phase=phase)

    assert step(last, event_for(last, Outcome.FAILED)).phase is Phase.ESCALATED
    assert step(before, event_for(before, Outcome.FAILED)) == IncidentState(
        "inc-1", 3, 3, Phase.FENCING
    )


def test_only_acting_phases_owe_a_command_and_its_key_names_incident_try_and_phase() -> None:
    owed = {phase: command_for(IncidentState("inc-1", 3, 2, phase)) for phase in Phase}

    assert [phase for phase, command in owed.items() if command] == list(ACTING)
    assert owed[Phase.FENCING].key == "inc-1/2/fencing"


@given(st.lists(st.sampled_from(Outcome), max_size=60), st.integers(1, 5))
def test_any_sequence_ends_within_its_tries_and_never_leaves_an_end(
    outcomes: list[Outcome], tries_max: int
) -> None:
    state = IncidentState("inc-1", tries_max)
    keys: list[str] = []
    for outcome in outcomes:
        before = state
        try:
            state = step(state, event_for(state, outcome))
        except IllegalEventError:
            assert state == before
            continue
        assert before.phase not in ENDED
        if (command := command_for(state)) is not None:
            keys.append(command.key)

    assert state.try_number <= tries_max
    assert len(keys) == len(set(keys)) <= 3 * tries_max

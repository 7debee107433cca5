import signal

from recovery.launcher.guardian.rank_signals import Receivers, SignalMasks, choose_receivers
from recovery.launcher.processes.process_tree import KernelProcess

TERM, USR1 = 1 << (signal.SIGTERM - 1), 1 << (signal.SIGUSR1 - 1)
QUIT = 1 << (signal.SIGQUIT - 1)
BASH, PYTHON, UV = "/usr/bin/bash", "/usr/bin/python3.11", "/usr/bin/uv"
LEADER, HOLDER = 10, 20


def process(pid: int, ppid: int, group: int = LEADER) -> KernelProcess:
    return KernelProcess(pid, "", "S", ppid, group, LEADER, 0, 1, 100 + pid, 0)


def choose(
    number: signal.Signals,
    holder: int | None,
    *processes: KernelProcess,
    **masks: SignalMasks,
) -> Receivers:
    """Return the receivers. ``masks``: by a name that ends in the pid."""
    known = {int(name[1:]): mask for name, mask in masks.items()}
    by_pid = {state.pid: state for state in processes}
    return choose_receivers(
        number, LEADER, holder, by_pid, lambda pid: known.get(pid, SignalMasks())
    )


def test_holder_that_leads_receives_it_alone() -> None:
    chosen = choose(signal.SIGTERM, LEADER, process(LEADER, 1), process(11, LEADER))

    assert chosen == Receivers((LEADER,))


def test_holder_elsewhere_receives_it_and_the_tool_in_front_does_not() -> None:
    """A daemon has started the container: nothing between them is known."""
    chosen = choose(
        signal.SIGTERM,
        HOLDER,
        process(LEADER, 1),
        process(HOLDER, 5),
        p10=SignalMasks(caught=TERM, program="/usr/bin/docker"),
    )

    assert chosen == Receivers((HOLDER,))


def test_shell_with_job_control_may_forward_and_gets_nothing() -> None:
    chosen = choose(
        signal.SIGTERM,
        HOLDER,
        process(LEADER, 1),
        process(HOLDER, LEADER, group=HOLDER),
        p10=SignalMasks(caught=TERM, program=BASH),
    )

    assert chosen == Receivers((HOLDER,))


def test_trap_for_a_command_in_the_foreground_runs_and_one_in_the_background_does_not() -> None:
    tree = (process(LEADER, 1), process(HOLDER, LEADER))
    shell = SignalMasks(caught=USR1, program=BASH)
    handler = SignalMasks(caught=USR1, program=PYTHON)
    behind = SignalMasks(caught=USR1, ignored=QUIT, program=PYTHON)

    assert choose(signal.SIGUSR1, HOLDER, *tree, p10=shell, p20=handler) == Receivers((20, 10))
    assert choose(signal.SIGUSR1, HOLDER, *tree, p10=shell, p20=behind) == Receivers((20,))


def test_program_that_may_forward_waits_for_the_rank_where_the_job_stops() -> None:
    tree = (process(LEADER, 1), process(HOLDER, LEADER))
    masks = {"p10": SignalMasks(caught=TERM | USR1, program=UV), "p20": SignalMasks(caught=USR1)}

    assert choose(signal.SIGTERM, HOLDER, *tree, **masks) == Receivers((20,), (10,))
    assert choose(signal.SIGUSR1, HOLDER, *tree, **masks) == Receivers((20,))


def test_sigusr1_needs_a_process_that_survives_it() -> None:
    tree = (process(LEADER, 1), process(HOLDER, LEADER))

    assert choose(signal.SIGUSR1, HOLDER, *tree) == Receivers()
    assert choose(signal.SIGUSR1, HOLDER, *tree, p20=SignalMasks(blocked=USR1)).now == (20,)
    assert choose(signal.SIGUSR1, HOLDER, *tree, p20=SignalMasks(ignored=USR1)).now == (20,)
    assert choose(signal.SIGUSR1, None, *tree) == Receivers()
    assert choose(signal.SIGUSR1, None, *tree, p10=SignalMasks(caught=USR1)).now == (10,)


def test_ranks_of_an_inner_launcher_receive_it_and_its_other_children_do_not() -> None:
    rank = SignalMasks(caught=TERM, program=PYTHON)
    chosen = choose(
        signal.SIGTERM,
        HOLDER,
        *(process(LEADER, 1), process(HOLDER, LEADER), process(21, LEADER), process(22, LEADER)),
        process(23, LEADER),
        p10=SignalMasks(caught=TERM, program=PYTHON),
        p20=rank,
        p21=rank,
        p22=SignalMasks(program=PYTHON),
        p23=SignalMasks(caught=TERM, program="/usr/bin/tee"),
    )

    assert chosen == Receivers((20, 21), (10,))


def test_without_a_holder_a_shell_that_waits_for_several_receives_it_itself() -> None:
    handler = SignalMasks(caught=TERM, program=PYTHON)
    tree = (process(LEADER, 1), process(HOLDER, LEADER), process(21, LEADER))
    shell = SignalMasks(program=BASH)

    assert choose(signal.SIGTERM, None, *tree, p10=shell, p20=handler).now == (LEADER,)
    assert choose(signal.SIGTERM, None, *tree[:2], p10=shell, p20=handler).now == (HOLDER,)
    assert choose(signal.SIGTERM, None, *tree[:2], p10=shell).now == (LEADER,)

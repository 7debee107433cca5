"""The hook in real interpreters, the oldest and the newest that it supports among them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankmend.hook import layout
from rankmend.progress import Section
from tests.support.hook import RUN_S_MAX, Rank, each_python

pytestmark = [pytest.mark.process, each_python]

EVERY_CALL = """\
import os, rankmend
rankmend.attach()
for number in range(3):
    with rankmend.section("compute"):
        pass
    rankmend.step(number)
rankmend.resume()
"""
LIST_SOCKETS = """\
links = []
for name in os.listdir("/proc/self/fd"):
    try:
        links.append(os.readlink("/proc/self/fd/" + name))
    except OSError:
        pass
print(len(os.listdir("/proc/self/task")), [link for link in links if "socket" in link])
"""


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


def test_import_loads_nothing_but_the_hook_and_struct(rank: Rank, python: str) -> None:
    loaded = rank.run(
        python,
        """
        import sys
        before = set(sys.modules)
        import rankmend
        print(sorted(set(sys.modules) - before - {"struct", "_struct"}))
        rankmend.attach()
        after = {name for name in set(sys.modules) - before if "rankmend" not in name}
        print(sorted(after - {"struct", "_struct", "fcntl", "mmap", "time", "zlib"}))
        """,
    )

    assert loaded.splitlines() == ["['rankmend', 'rankmend.hook', 'rankmend.hook.layout']", "[]"]


def test_every_call_together_starts_no_thread_and_opens_no_socket(rank: Rank, python: str) -> None:
    told = rank.run(python, EVERY_CALL + LIST_SOCKETS)

    assert told == "1 []\n"
    assert rank.steps() == [0, 1, 2]


def test_process_that_rankmend_did_not_start_gets_nothing_at_all(rank: Rank, python: str) -> None:
    rank.environment = {layout.ENV_PROGRESS_FILE: "", layout.ENV_ATTEMPT: ""}

    done = rank.run_command(
        rank.command(
            python,
            """
            import os, sys, rankmend
            before = sorted(os.listdir("/proc/self/fd"))
            with rankmend.section("compute"):
                rankmend.step(1)
            print(rankmend.attach(), rankmend.resume(), rankmend.may_publish("x"))
            print(sorted(os.listdir("/proc/self/fd")) == before)
            print("rankmend.hook.writer" in sys.modules)
            """,
        )
    )

    assert done.stdout.splitlines() == ["False None True", "True", "False"]
    assert done.stderr == ""


def _spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "link":
        path.with_suffix(".real").write_bytes(data)
        path.symlink_to(path.with_suffix(".real"))
    elif how == "device":
        path.symlink_to("/dev/null")
    elif how != "vanished":
        contents = {
            "empty": b"",
            "short": data[:-1],
            "long": data + b"x",
            "zeros": bytes(len(data)),
            "other magic": b"X" + data[1:],
            "other version": data[:8] + b"\x03" + data[9:],
        }
        path.write_bytes(contents[how])


@pytest.mark.parametrize(
    "how",
    [
        "vanished",
        "empty",
        "short",
        "long",
        "zeros",
        "other magic",
        "other version",
        "folder",
        "pipe",
        "link",
        "device",
    ],
)
def test_unusable_progress_file_is_named_once_and_training_goes_on(
    rank: Rank, python: str, how: str
) -> None:
    _spoil(rank.path, how)

    done = rank.run_command(rank.command(python, EVERY_CALL + "print('trained')"))

    assert done.stdout == "trained\n"
    assert done.stderr.count("rankmend: cannot report this rank's progress") == 1
    assert len(done.stderr.splitlines()) == 1
    assert str(rank.path) in done.stderr


def test_progress_file_without_write_permission_does_not_stop_training(
    rank: Rank, python: str
) -> None:
    rank.path.chmod(0o400)

    told = rank.run(
        python,
        """
        import os, rankmend, rankmend.hook.notice, rankmend.hook.writer
        if os.geteuid() == 0:
            os.seteuid(65534)  # root may write what nobody may
        print(rankmend.attach())
        rankmend.step(1)
        """,
    )

    assert told == "False\n"
    assert rank.read().pid == 0


def test_wrong_arguments_are_ignored_and_the_next_right_ones_count(rank: Rank, python: str) -> None:
    done = rank.run_command(
        rank.command(
            python,
            """
            import rankmend
            class Angry:
                def fail(self, *_):
                    raise RuntimeError("no")
                __index__ = __gt__ = __lt__ = __hash__ = __eq__ = __str__ = __repr__ = fail
            for number in (None, "3", 1.5, -1, 2**63, 2**64, 2**200, float("nan"), [], Angry()):
                rankmend.step(number)
            for name in ("nonsense", "", None, 7, [], {}, Angry()):
                with rankmend.section(name):
                    pass
            rankmend.may_publish(Angry())
            rankmend.step(2**63 - 1)
            rankmend.step(True)
            """,
        )
    )

    assert rank.steps() == [2**63 - 1, 1]
    assert rank.read().sections_entered == 0
    assert done.stderr.splitlines() == [
        "rankmend: step() takes a whole number from 0 to 2**63 - 1, not NoneType None"
    ]


def test_nested_sections_share_the_time_between_them_without_a_rest(
    rank: Rank, python: str
) -> None:
    lines = rank.run(
        python,
        """
        import rankmend
        from time import monotonic_ns as now
        def wait(ns):
            end = now() + ns
            while now() < end:
                pass
        rankmend.attach()
        compute, io = rankmend.section("compute"), rankmend.section("io")
        before = now()
        compute.__enter__()
        inside = now()
        wait(2000000)
        io_before = now()
        with io:
            wait(3000000)
            with rankmend.section("compute"):  # the same section once more
                pass
        io_after = now()
        wait(1000000)
        end = now()
        compute.__exit__(None, None, None)
        after = now()
        rankmend.step(1)
        print(inside, end, before, after, io_after - io_before)
        """,
    )
    inside, end, before, after, io_ns = map(int, lines.split())
    record = rank.read().records[0]
    total_ns = round((record.compute_s + record.io_s) * 1e9)

    assert end - inside <= total_ns <= after - before
    assert record.compute_s * 1e9 >= 3_000_000
    assert 3_000_000 <= round(record.io_s * 1e9) <= io_ns
    assert (record.communication_s, record.checkpoint_s) == (0, 0)
    assert rank.read().sections_entered == 3
    assert rank.read().section is Section.IDLE


def test_step_told_inside_a_section_holds_the_part_already_spent(rank: Rank, python: str) -> None:
    rank.run(
        python,
        """
        import rankmend
        from time import monotonic_ns as now
        with rankmend.section("communication"):
            end = now() + 1000000
            while now() < end:
                pass
            rankmend.step(1)
        rankmend.step(2)
        """,
    )

    first, second = rank.read().records
    assert 0.001 <= first.communication_s <= second.communication_s


def test_exception_in_a_section_passes_through_and_ends_it(rank: Rank, python: str) -> None:
    told = rank.run(
        python,
        """
        import rankmend
        try:
            with rankmend.section("compute"):
                with rankmend.section("io"):
                    raise KeyError("mine")
        except KeyError as error:
            print(error)
        """,
    )

    assert told == "'mine'\n"
    assert rank.read().section is Section.IDLE
    assert rank.read().sections_entered == 2


def test_sections_without_end_or_beginning_cost_no_memory_and_no_error(
    rank: Rank, python: str
) -> None:
    told = rank.run(
        python,
        """
        import rankmend, resource
        io = rankmend.section("io")
        io.__exit__(None, None, None)
        with rankmend.section("compute"):
            pass
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(200000):
            io.__enter__()
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        rankmend.step(1)
        for _ in range(30):
            io.__exit__(None, None, None)
        rankmend.step(2)
        print(grown_kib)
        """,
    )

    assert int(told) < 1000
    assert rank.steps() == [1, 2]
    assert rank.read().section is Section.IDLE


def test_names_imported_before_the_first_call_work_as_the_others_do(
    rank: Rank, python: str
) -> None:
    rank.run(
        python,
        """
        from rankmend import section, step
        for number in (10, 11):
            with section("checkpoint"):
                pass
            step(number)
        """,
    )

    assert rank.steps() == [10, 11]
    assert rank.read().sections_entered == 2


@pytest.mark.parametrize("attach_first", [True, False])
def test_forked_child_never_writes_as_its_parent(
    rank: Rank, python: str, attach_first: bool
) -> None:
    first = "rankmend.attach(); step(1)" if attach_first else "pass"
    rank.run(
        python,
        f"""
        import os, rankmend
        from rankmend import section, step
        compute = section("compute") if {attach_first} else None
        {first}
        pid = os.fork()
        if pid == 0:
            try:
                for number in (100, 101):
                    with section("io"):
                        step(number)
                    with rankmend.section("io"):
                        rankmend.step(number)
                    if compute:
                        with compute:
                            pass
                rankmend.attach(), rankmend.resume()
                code = 0 if not rankmend.attach() else 1
            except BaseException:
                code = 2
            os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        step(2)
        print(os.getpid())
        """,
    )

    assert rank.steps() == ([1, 2] if attach_first else [2])
    assert rank.read().sections_entered == 0


WORKER = """
import multiprocessing
import rankmend  # imported again in a spawned worker

def work(_number):
    with rankmend.section("io"):
        rankmend.step(500)
    return rankmend.attach()

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(work, range(4)) == [False] * 4, method
    rankmend.step(1)
"""


def test_multiprocessing_worker_never_takes_the_place_of_its_rank(rank: Rank, python: str) -> None:
    script = rank.folder / "train.py"
    script.write_text(WORKER)

    done = rank.run_command([python, str(script)])

    assert rank.steps() == [1]
    assert rank.read().sections_entered == 0
    assert done.stderr == ""


def test_second_writer_is_refused_while_the_first_lives_and_starts_afresh_after(
    rank: Rank, python: str
) -> None:
    first = rank.start(
        python,
        "import rankmend; rankmend.step(7); rankmend.step(8); print('on', flush=True); input()",
    )
    attach = "import rankmend; print(rankmend.attach()); rankmend.step(20)"
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "on\n"
        second = rank.run_command(rank.command(python, attach))
        assert (second.stdout, second.stderr) == ("False\n", "")
        assert (rank.steps(), rank.read().pid) == ([7, 8], first.pid)
    finally:
        first.communicate("\n", timeout=RUN_S_MAX)

    assert rank.run(python, "import rankmend; print(rankmend.attach())") == "True\n"
    assert rank.steps() == []  # none of the first writer's
    assert rank.run(python, attach) == "True\n"
    assert rank.steps() == [20]


def test_process_that_replaces_itself_by_exec_goes_on_telling(rank: Rank, python: str) -> None:
    rank.run(
        python,
        """
        import os, sys, rankmend
        rankmend.step(1)
        os.execv(sys.executable, [sys.executable, "-c", "import rankmend; rankmend.step(2)"])
        """,
    )

    assert rank.steps() == [2]


def test_reloaded_module_goes_on_telling(rank: Rank, python: str) -> None:
    rank.run(
        python,
        """
        import importlib, rankmend
        rankmend.step(1)
        importlib.reload(rankmend).step(2)
        """,
    )

    assert rank.steps() == [2]


def test_file_that_vanishes_under_a_writer_disturbs_nothing(rank: Rank, python: str) -> None:
    rank.run(
        python,
        f"import os, rankmend; rankmend.step(1); os.unlink({str(rank.path)!r}); rankmend.step(2)",
    )

    assert rank.steps() == [1, 2]


def test_steps_and_sections_from_several_threads_raise_nothing(rank: Rank, python: str) -> None:
    done = rank.run_command(
        rank.command(
            python,
            """
            import sys, threading, rankmend
            sys.setswitchinterval(1e-5)
            errors = []
            def work(first):
                try:
                    for number in range(first, first + 5000):
                        with rankmend.section("compute"):
                            rankmend.step(number)
                except BaseException as error:
                    errors.append(error)
            threads = [threading.Thread(target=work, args=(start,)) for start in (0, 10**6)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            rankmend.step(42)
            print(errors)
            """,
        )
    )

    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert rank.steps()[-1] == 42


def test_calls_at_interpreter_shutdown_raise_nothing(rank: Rank, python: str) -> None:
    done = rank.run_command(
        rank.command(
            python,
            """
            import atexit, rankmend
            class Late:
                def __del__(self, step=rankmend.step, section=rankmend.section):
                    with section("io"):
                        step(3)
            late = Late()
            late.itself = late
            rankmend.step(1)
            atexit.register(rankmend.step, 2)
            """,
        )
    )

    assert done.stderr == ""
    assert rank.steps()[:2] == [1, 2]


def test_exceptions_out_of_a_signal_handler_pass_through_and_leave_a_file_that_reads(
    rank: Rank, python: str
) -> None:
    told = rank.run(
        python,
        """
        import signal, rankmend
        class Interrupt(Exception):
            pass
        def handler(*_):
            raise Interrupt
        rankmend.step(0)
        number = interrupted = 0
        signal.signal(signal.SIGALRM, handler)
        while interrupted < 300:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002)
                while True:
                    with rankmend.section("compute"):
                        with rankmend.section("io"):
                            number += 1
                            rankmend.step(number)
            except Interrupt:
                interrupted += 1
        rankmend.step(2**40)
        print(number)
        """,
    )

    steps = rank.steps()
    assert steps[-1] == 2**40
    assert steps == sorted(steps)
    assert rank.read().step_count <= int(told) + 2


def test_resume_tells_path_step_and_attempt(rank: Rank, python: str) -> None:
    rank.environment = {layout.ENV_RESUME_PATH: "/ckpt/7", layout.ENV_RESUME_STEP: "700"}

    told = rank.run(python, "import rankmend; print(rankmend.resume(), rankmend.resume().path)")

    assert told == "Resume(path='/ckpt/7', step=700, attempt=3) /ckpt/7\n"
    progress = rank.read()
    assert progress.attached_at_s is not None
    assert progress.resumed_at_s is not None
    assert progress.resumed_at_s >= progress.attached_at_s


def test_resume_tells_the_parts_of_the_path_for_those_who_take_two(rank: Rank, python: str) -> None:
    rank.environment = {layout.ENV_RESUME_PATH: "/ckpt/global_step7"}

    told = rank.run(
        python, "import rankmend; c = rankmend.resume(); print(c.directory, c.tag, c.step)"
    )

    assert told == "/ckpt global_step7 None\n"


def test_what_resume_returns_is_itself_a_path(rank: Rank, python: str) -> None:
    rank.environment = {layout.ENV_RESUME_PATH: "/ckpt/7"}

    told = rank.run(python, "import os, rankmend; print(os.path.join(rankmend.resume(), 'a.npz'))")

    assert told == "/ckpt/7/a.npz\n"


@pytest.mark.parametrize("text", ["", "x", "\u00b2", "9" * 5000])
def test_resume_with_an_unreadable_step_still_tells_the_path(
    rank: Rank, python: str, text: str
) -> None:
    rank.environment = {layout.ENV_RESUME_PATH: "/ckpt/7", layout.ENV_RESUME_STEP: text}

    told = rank.run(python, "import rankmend; print(rankmend.resume().path)")

    assert told == "/ckpt/7\n"


@pytest.mark.parametrize(
    ("fence", "answer"),
    [
        ("3", True),
        ("3\n", True),
        ("4\n", False),
        ("2\n", False),
        ("", False),
        ("3" * 64, False),
        ("\u00ff", False),
        (None, False),
    ],
)
def test_checkpoint_is_published_by_the_current_attempt_only(
    rank: Rank, python: str, fence: "str | None", answer: bool
) -> None:
    fence_path = rank.folder / "fence"
    if fence is not None:
        fence_path.write_text(fence)
    rank.environment = {layout.ENV_FENCE_FILE: str(fence_path)}

    done = rank.run_command(
        rank.command(python, "import rankmend; print(rankmend.may_publish('/ckpt/8'))")
    )

    assert done.stdout == f"{answer}\n"
    assert done.stderr.startswith("" if answer else "rankmend: /ckpt/8 is not published: ")
    assert (done.stderr == "") is answer


def test_rank_killed_at_any_moment_leaves_a_file_that_reads(rank: Rank, python: str) -> None:
    process = rank.start(
        python,
        """
        import rankmend
        print("on", flush=True)
        number = 0
        while True:
            with rankmend.section("compute"):
                number += 1
            rankmend.step(number)
        """,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        while rank.read().step_count < 1000 and process.poll() is None:
            pass
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=RUN_S_MAX)

    progress = rank.read()
    assert [record.step for record in progress.records] == [
        record.count for record in progress.records
    ]
    assert len(progress.records) == 255


def test_hook_files_compile_without_a_warning(python: str, tmp_path: Path) -> None:
    hook = Path(sys.modules["rankmend"].__file__ or "").parent
    files = [hook / "__init__.py", *sorted((hook / "hook").rglob("*.py"))]

    code = "import sys\nfor name in sys.argv[1:]: compile(open(name).read(), name, 'exec')"
    subprocess.run([python, "-W", "error", "-c", code, *map(str, files)], check=True, cwd=tmp_path)

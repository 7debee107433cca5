"""How a child of the guardian becomes the program of a rank: between fork and exec.

The launcher passes the program in an unnamed file (`write_body`), because arguments and environment may
take megabytes.
"""

import contextlib
import errno
import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from recovery.launcher.guardian.packets import TEXT_MAX
from recovery.launcher.processes.prctl import die_with_parent

BODY_BYTES_MAX: Final = 32 << 20  # the kernel accepts 6 MiB, which JSON can inflate fivefold


@dataclass(frozen=True, slots=True)
class SpawnBody:
    """The program, its folder and its environment."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    cpus: Sequence[int] = ()  # processors to bind the rank to; empty: those of its guardian


def encode_body(body: SpawnBody) -> bytes:
    """Return the bytes that `read_body` reads from a file."""
    fields: dict[str, object] = {"argv": list(body.argv), "env": dict(body.env), "cwd": body.cwd}
    if body.cpus:
        fields["cpus"] = list(body.cpus)
    return json.dumps(fields).encode("ascii")


def read_body(descriptor: int) -> SpawnBody:
    """Return the body that a launcher of this version has written into a file."""
    fields = json.loads(os.pread(descriptor, BODY_BYTES_MAX, 0))
    return SpawnBody(fields["argv"], fields["env"], fields["cwd"], fields.get("cpus", ()))


def become_rank(
    guardian_pid: int, body: SpawnBody, standard: tuple[int, int, int], report: int
) -> NoReturn:
    """Become the program of a rank, in the forked child; report an error through the pipe.

    All other descriptors are close-on-exec, as Python opens them.
    """
    doing = "prepare"
    program, folder = body.argv[0], body.cwd
    try:
        signal.set_wakeup_fd(-1)
        die_with_parent(guardian_pid)
        os.setsid()
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for target, source in enumerate(standard):
            os.dup2(source, target)
        if body.cpus:
            doing = f"bind it to the processors {list(body.cpus)}"
            os.sched_setaffinity(0, body.cpus)
        doing = f"enter the working folder {folder!r}"
        os.chdir(folder)
        doing = f"execute {program!r}"
        os.execvpe(program, list(body.argv), dict(body.env))  # noqa: S606
    except BaseException as error:  # noqa: BLE001 - a child must never return into the guardian
        code = error.errno if isinstance(error, OSError) and error.errno else errno.EINVAL
        reason = _explain(error, program if doing.startswith("execute") else "")
        text = f"cannot {doing}: {reason}"
        with contextlib.suppress(BaseException):
            os.write(report, f"{code} {text[:TEXT_MAX]}".encode("utf-8", "replace"))
    os._exit(127)


def _explain(error: BaseException, program: str) -> str:
    """Return why a call failed, with what its error number means for an executed program."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
    if not program:
        return text
    match getattr(error, "errno", None):
        case errno.ENOENT | errno.ENOTDIR if "/" not in program:
            return f"{text} (looked for on PATH)"
        case errno.ENOENT if os.path.exists(program):  # noqa: PTH110
            return f"{text} (it is there, the interpreter that it names is not)"
        case errno.ENOEXEC:
            return f"{text} (neither a program of this machine nor a script with a #! line)"
        case errno.E2BIG:
            return f"{text} (all arguments and variables together, or one of over 128 KiB)"
    return text

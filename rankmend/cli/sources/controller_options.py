"""Options of commands that call a controller, and the messages when a call fails."""

import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import click
from click.core import ParameterSource

from rankmend.cli import output
from rankmend.cli.options import fail, find_state, print_json, state_option
from rankmend.cli.output import echo
from rankmend.errors import RankmendError
from rankmend.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

    from rankmend.cli.sources.folder_client import FolderClient
    from recovery.api import wire
    from recovery.api.controller_errors import (
        BusyError,
        ControllerError,
        RefusedError,
        UnreachableError,
    )
    from recovery.api.operator_client import OperatorClient
    from recovery.messages.outside import PersonAct

USAGE: Final = 2  # exit code of a wrong command line or file, as click's own
_NAMES_SHOWN: Final = 20  # in an error message

_NONE_NAMED: Final = (
    "this command needs a controller: give --controller URL or RANKMEND_CONTROLLER; for a job whose "
    "launchers host the controller (--rdzv-endpoint), give its checkpoint folder with --job-folder. "
    "A job of `rankmend run` on one node takes approve, reject, cancel, plan, pause --job, resume --job, restart, "
    "reset-budgets and stop without a controller"
)
REACH_OPTIONS: Final = (  # which controller, and with what
    click.option(
        "--controller",
        metavar="URL[,URL]",
        envvar="RANKMEND_CONTROLLER",
        help="One or more controllers that run as a service.  [env: RANKMEND_CONTROLLER]",
    ),
    click.option(
        "--token-file",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="RANKMEND_TOKEN_FILE",
        help="File (mode 0600) with your token.  [env: RANKMEND_TOKEN_FILE]",
    ),
    click.option(
        "--ca-file",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="RANKMEND_CA_FILE",
        help="CA of the controller's certificate.  [env: RANKMEND_CA_FILE; default: the system's]",
    ),
)
_OPTIONS: Final = (
    *REACH_OPTIONS,
    click.option(
        "--job-folder",
        metavar="DIR",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Checkpoint folder of a job started with --rdzv-endpoint; asks the launcher that hosts its controller.",
    ),
)

_NAMES: Final = ("controller", "token_file", "ca_file", "job_folder")

# By the reason in the controller's answer, else by its HTTP status.
_BUSY: Final = {
    "starting": "starting takes seconds, or minutes with hundreds of jobs (/readyz reports when it is done)",
    "stopping": "it is stopping, perhaps for an upgrade: try again once it has started",
    "busy": "if this persists, check its alerts RankmendControllerOverloaded and RankmendControllerStuck",
    "journal": "the disk of its state_dir is full or broken: check df, dmesg and its log",
    "job": "rankmend status shows what is wrong with the job's journal",
    "429": "this token sends too many requests: ask less often, or raise [limits] in the controller's configuration",
    "500": "it failed on this request: see the traceback in its log",
    "502": "a proxy answered instead: it does not reach the controller",
    "504": "a proxy answered instead: it does not reach the controller",
}

_WRONG_NAME: Final = "address the controller by a name that its certificate contains"
_WRONG_TIME: Final = (
    "its certificate is not valid by this machine's clock: check the clock, or renew the "
    "certificate with rankmend controller server-cert"
)


class JobClient(Protocol):
    """Asks about jobs and commands them: a controller's client, or `rankmend.cli.sources.folder_client`."""

    @property
    def searched(self) -> str:
        """Return where jobs were looked for, if the person has not named it; begins with "; "."""
        ...

    def close(self) -> None: ...
    def jobs(self, *, with_ended: bool = False) -> "Sequence[wire.JobView]": ...
    def plans(self) -> "Sequence[wire.PlanView]": ...
    def dry_run(self, job_id: str, node: str | None = None) -> "wire.PlanView": ...
    def cluster(self) -> "wire.Cluster": ...
    def resume(self, reason: str, scope: str = "cluster") -> "wire.Done": ...
    def command(
        self,
        job_id: str,
        act: "PersonAct",
        *,
        reason: str = "",
        incident_id: str | None = None,
        node: str | None = None,
        key: str = "",
        plan_id: str = "",
    ) -> "wire.Done": ...


expected_option = click.option(
    "--expected", is_flag=True, help="Accept a node that the controller does not know yet."
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Don't ask for confirmation.")


def reason_option(*, required: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option for the reason of a command, which the journal keeps."""
    text = "Reason, kept for the record."
    if required:
        return click.option("--reason", required=True, help=text)
    return click.option("--reason", default="", help=text)


class Access(NamedTuple):
    """The controllers to ask, and the credentials to use."""

    urls: tuple[str, ...]
    token_file: Path | None
    ca_file: Path | None
    job_folder: Path | None = None  # checkpoints of a job whose launchers host its controller
    state_dir: Path | None = None  # of jobs on this machine, for commands that reach these

    @property
    def is_named(self) -> bool:
        """Whether a controller or a job folder is given."""
        return bool(self.urls) or self.job_folder is not None


def controller_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name a controller to a command, as one argument ``access``."""

    @wraps(command)
    def call(**options: Any) -> None:
        access = access_of(options)
        rest = {name: value for name, value in options.items() if name not in _NAMES}
        command(access=access, **rest)

    for option in reversed(_OPTIONS):
        call = option(call)
    return call


def job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name a controller, or this machine's state folder, as one argument ``access``."""

    @wraps(command)
    def call(access: Access, state_dir: Path | None, **options: Any) -> None:
        command(access=access._replace(state_dir=state_dir), **options)

    return state_option(controller_options(call))


def access_of(options: Mapping[str, Any]) -> Access:
    """Return the access that the parsed options describe."""
    urls = str(options.get("controller") or "").split(",")
    named = tuple(url.strip() for url in urls if url.strip())
    folder = options.get("job_folder")
    state = options.get("state_dir")
    return Access(named, options.get("token_file"), options.get("ca_file"), folder, state)


def is_local(access: Access) -> bool:
    """Return whether to read this machine's state folder, for a command that can.

    The command line overrides the environment; naming both on the command line is an error.
    """
    if not access.is_named:
        return True
    named = _on_command_line("state_dir", "controller", "job_folder")
    if "state_dir" in named and len(named) > 1:
        raise click.UsageError(
            "give either --state-dir, to read this machine, or --controller or --job-folder, to ask a controller"
        )
    return named == ["state_dir"]


def is_own_state() -> bool:
    """Return whether the state folder is this machine's own: `--state-dir` may name a copy of another machine's."""
    return not _on_command_line("state_dir")


def _on_command_line(*names: str) -> list[str]:
    context = click.get_current_context()
    given = ParameterSource.COMMANDLINE
    return [name for name in names if context.get_parameter_source(name) is given]


def client_of(access: Access) -> "OperatorClient":
    """Return a client of the controller, or raise ConfigError or OSError."""
    from recovery.api.operator_client import OperatorClient

    if access.job_folder is None:
        return OperatorClient(access.urls, token_file=access.token_file, ca_file=access.ca_file)
    from recovery.launcher.run.meeting_site import find_host
    from recovery.service.meeting_secret import Identity

    note = find_host(access.job_folder)
    identity = Identity(note.secret)
    return OperatorClient([note.url], token=identity.token, fingerprint=identity.fingerprint)


@contextmanager
def asking_job(access: Access) -> "Iterator[JobClient]":
    """Give a client of the controller, or of this machine's jobs on one node if none is named."""
    if not is_local(access):
        with asking(access) as client:
            yield client
        return
    from recovery.api.controller_errors import ControllerError

    try:
        yield local_client(access)
    except ControllerError as error:
        _print_refusal(error, access)
        fail(explain(error, access))
    except RankmendError as error:
        fail(str(error))


def local_client(access: Access) -> "FolderClient":
    from rankmend.cli.sources.folder_client import FolderClient

    return FolderClient(find_state(access.state_dir))


@contextmanager
def asking(access: Access) -> "Iterator[OperatorClient]":
    """Give a client of the controller; a failure ends the command with a message that says what to do."""
    from rankmend.errors import ConfigError, SourceError
    from recovery.api.controller_errors import ControllerError

    if not access.is_named:
        fail(_NONE_NAMED, USAGE)
    if len(_on_command_line("controller", "job_folder")) == 2:
        raise click.UsageError("give --controller or --job-folder, not both")
    try:
        client = client_of(access)
    except (ConfigError, SourceError, OSError, ValueError) as error:
        fail(_explain_setting(error, access), USAGE)
    try:
        yield client
    except ControllerError as error:
        _print_refusal(error, access)
        fail(explain(error, access))
    finally:
        client.close()


def _print_refusal(error: "ControllerError", access: Access) -> None:
    """Print for a script why nothing was done, if the command prints JSON."""
    from recovery.api.controller_errors import RefusedError

    if not click.get_current_context().params.get("as_json"):
        return
    reported: dict[str, Any] = {"error": explain(error, access)}
    if isinstance(error, RefusedError):
        reported |= {"status": error.status, "refusal": error.problem.refusal}
    print_json(reported)


def _explain_setting(error: Exception, access: Access) -> str:
    if isinstance(error, OSError):  # OpenSSL names neither the file nor the reason
        return f"cannot use the authority in {access.ca_file}: {error}"
    return str(error)


def explain(error: "ControllerError", access: Access) -> str:
    """Return why the call failed, and what to do about it."""
    from recovery.api.controller_errors import BusyError, RefusedError, UnreachableError

    if isinstance(error, UnreachableError):
        reasons = "".join(f"\n  {printable(problem)}" for problem in error.problems)
        if isinstance(error, BusyError):
            return f"the controller answers, but can't do this now:{reasons}\n{_when(error)}"
        hint = _hint(error, access)
        return f"no controller answered:{reasons}" + (f"\n{hint}" if hint else "")
    return _explain_refusal(error, access) if isinstance(error, RefusedError) else str(error)


def _when(error: "BusyError") -> str:
    """Return when to try again, and what to check if that does not help."""
    todo = _BUSY.get(error.reason) or _BUSY.get(str(error.status)) or _BUSY["busy"]
    again = "" if error.retry_after_s is None else f"try again in {error.retry_after_s:g} s; "
    return again + todo


def _explain_refusal(error: "RefusedError", access: Access) -> str:
    said = printable(error.problem.error)
    if error.status == 401 and access.token_file is None:
        return (
            f"the controller needs a token ({said}): name the file with your token with "
            "--token-file or RANKMEND_TOKEN_FILE (rankmend controller token add makes one)"
        )
    if error.status == 401:
        return f"the controller refuses the token in {access.token_file}: {said}"
    if error.status == 403:
        return (
            f"the token in {access.token_file} does not allow this: {said} "
            "(rankmend controller token add --role ... makes a token that does)"
        )
    return f"refused: {said}"


def _hint(error: "UnreachableError", access: Access) -> str | None:
    """Return what to do about a TLS failure, or None for other failures."""
    from recovery.api.controller_errors import TlsFault

    authority = (
        "this system does not trust the CA of its certificate: give its ca.crt (made by "
        "rankmend controller init) with --ca-file or RANKMEND_CA_FILE"
        if access.ca_file is None
        else f"the CA in {access.ca_file} did not issue its certificate"
    )
    hints = {
        TlsFault.WRONG_NAME: _WRONG_NAME,
        TlsFault.WRONG_TIME: _WRONG_TIME,
        TlsFault.NO_TLS: "the server at that address does not speak TLS",
        TlsFault.NO_CERTIFICATE: f"there is no certificate in {access.ca_file}",
        TlsFault.UNKNOWN_AUTHORITY: authority,
    }
    return None if error.tls_fault is None else hints[error.tls_fault]


def find_job(client: JobClient, wanted: str, *, with_ended: bool = False) -> "wire.JobView":
    """Return the one job with this name or UUID, else the one whose name or UUID has this prefix.

    ``with_ended``: if no running job matches, search the jobs that have ended.
    """
    jobs = client.jobs()
    found = _named(jobs, wanted)
    if not found and with_ended:
        jobs = client.jobs(with_ended=True)
        found = _named(jobs, wanted)
    if not found:
        fail(_no_job_text(client, jobs, wanted))
    if len(found) > 1:
        fail(f"{wanted!r} matches {len(found)} jobs; give the UUID: {_names(found)}")
    return found[0]


def _no_job_text(client: JobClient, jobs: "Sequence[wire.JobView]", wanted: str) -> str:
    """Return that no job matches, with an ended job of this name, else similar names and the jobs there are."""
    from recovery.console.views.state_words import word_of
    from recovery.controller.job.spelling import near

    ended = _named(client.jobs(with_ended=True), wanted)
    if ended:
        last = ended[-1]
        return f"job {last.name} {last.job_id} has ended: {word_of(last.state)}: {last.reason}"
    alike = near(wanted, {job.name for job in jobs})
    like = f"similar names: {', '.join(alike)}; " if alike else ""
    known = _names(jobs) if jobs else "none"
    return f"no job {wanted!r}; {like}known jobs: {known}{client.searched}"


def _named(jobs: "Sequence[wire.JobView]", wanted: str) -> "list[wire.JobView]":
    exact = [job for job in jobs if wanted in (job.job_id, job.name)]
    return exact or [
        job for job in jobs if job.job_id.startswith(wanted) or job.name.startswith(wanted)
    ]


def _names(jobs: "Sequence[wire.JobView]") -> str:
    shown = ", ".join(f"{printable(job.name)} {job.job_id}" for job in jobs[:_NAMES_SHOWN])
    more = len(jobs) - _NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation; end the command if the answer is no or there is no terminal."""
    question = printable(question)
    if yes:
        return
    if not sys.stdin.isatty():
        fail(f"{question} There is no terminal to ask on: add --yes", USAGE)
    if not click.confirm(question, err=True):
        fail("nothing was done")


def new_key() -> str:
    """Return a new key for a command: a retry with the same key takes effect once."""
    return str(uuid.uuid4())


def tell(text: str | Sequence[str], *, as_json: bool, **more: Any) -> None:
    """Report what was done, in one line or several."""
    lines = [text] if isinstance(text, str) else text
    if as_json:
        print_json({"done": "\n".join(lines), **more})
    else:
        echo("\n".join(printable(line) for line in lines))


def console() -> "Console":
    """Return the console for tables: as wide as the terminal; without one, wide enough for names."""
    return output.console(is_wide=True)

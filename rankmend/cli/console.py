"""`rankmend console`: this machine's state folder in a browser."""

import sys
from pathlib import Path

import click

from rankmend.cli.options import examples, fail, find_state, state_option
from rankmend.cli.output import echo, failure
from rankmend.cli.sources.controller_options import is_own_state
from rankmend.cli.sources.reader import has_watched
from rankmend.console import take_over


@click.command(
    epilog=examples(
        "rankmend console",
        after="The controller of a cluster serves its own console: open its address in a browser.",
    )
)
@state_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default="any free one",
    help="Port on 127.0.0.1.",
)
def console(state_dir: Path | None, port: int) -> None:
    """Open the jobs of this machine's state folder in a browser: a page for each job and incident.

    Prints an address that works once, on 127.0.0.1 only. The pages change nothing. Ctrl-C ends it.
    """
    echo("rankmend: starting the console, its address follows; Ctrl-C ends it", err=True)
    from rankmend.errors import RankmendError

    try:
        state = find_state(state_dir)
        if not state.is_dir() and not (is_own_state() and has_watched()):
            fail(f"there is no state folder {state}: no job has run here yet (rankmend run)")
        if sys.stdout is None:
            fail("standard output is closed, and the address would be printed there")
        from recovery.local.console.local_server import serve

        if is_own_state():
            from rankmend.cli.sources.watched_here import WatchedHere

            serve(state, port, _Teller(state).tell, WatchedHere().views)
        else:
            serve(state, port, _Teller(state).tell)
    except ImportError as error:
        fail(f"the console needs {error.name}, which is not installed: pip install {error.name}")
    except RankmendError as error:
        raise failure(error) from error


class _Teller:
    def __init__(self, state: Path) -> None:
        self._state = state
        self._is_first = True

    def tell(self, address: str) -> None:
        if self._is_first:
            echo(f"rankmend: the console of {self._state}. Open:\n  {address}")
            self._is_first = False
            take_over()  # from now on a terminal that is closed or stopped must not stop the pages
        else:
            echo(f"rankmend: that address is used up. For another browser:\n  {address}")

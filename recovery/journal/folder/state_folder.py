"""Where the state of this machine's jobs lies. Every command looks there: so it imports little."""

from collections.abc import Callable, Mapping
from pathlib import Path

from rankmend.errors import JournalError


def default_state_folder(
    environment: Mapping[str, str],
    refuse_network: Callable[[Path], None],
    local: Path = Path("/var/tmp"),  # noqa: S108 - the folder below it is checked
) -> Path:
    """Return where state lies without --state-dir: the home folder, if that is a local disk.

    A home folder on a network file system is the rule on clusters and no place for a journal;
    /var/tmp is local and outlives a reboot. ``refuse_network`` raises JournalError for one.
    """
    named = environment.get("RANKMEND_STATE_DIR")
    if named:
        return Path(named)
    home = Path(environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "rankmend"
    try:
        refuse_network(home)
    except JournalError:
        from rankmend.own_folder import find_own_folder  # noqa: PLC0415 - 15 ms, for few hosts

        return find_own_folder(local)
    return home

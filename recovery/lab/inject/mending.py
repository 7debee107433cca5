"""Undoes all of one injection, with a bounded number of tries, and says what could not be undone."""

import os
import time
from dataclasses import dataclass
from typing import Final

from rankmend.clock import read_boot_id
from rankmend.errors import RankmendError
from recovery.lab.inject.undo import Injection, Undo, outlives_boot
from recovery.lab.inject.undo_journal import UndoFolder
from recovery.lab.inject.undoing import carry_out

TRIES_MAX: Final = 20
_PAUSE_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Mended:
    """What came of undoing one injection."""

    injection_id: str
    fault: str
    target: str
    problems: tuple[str, ...]  # empty: all is as it was


def own_namespaces() -> tuple[int, int]:
    """Return the network and the mount namespace of this process, by inode."""
    return tuple(os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("net", "mnt"))  # type: ignore[return-value]  # noqa: PTH116


def mend(injection: Injection, folder: UndoFolder) -> Mended:
    """Undo everything, the newest first, and forget the injection if all of it succeeded."""
    problems = undo_all(injection)
    if not problems:
        folder.remove(injection.injection_id)
    return Mended(injection.injection_id, injection.fault, injection.target, problems)


def undo_all(injection: Injection) -> tuple[str, ...]:
    """Undo everything, the newest first, and return what could not be undone."""
    is_same_boot = injection.boot_id == read_boot_id()
    here = (injection.net_namespace, injection.mount_namespace)
    if is_same_boot and own_namespaces() != here:
        return ("it was made in other namespaces: undo it there (nsenter), or end them",)
    due = [item for item in reversed(injection.undo) if is_same_boot or outlives_boot(item)]
    return tuple(problem for item in due if (problem := _try(item)) is not None)


def _try(undo: Undo) -> str | None:
    problem = ""
    for number in range(TRIES_MAX):
        if number:
            time.sleep(_PAUSE_S)
        try:
            carry_out(undo)
            return None
        except RankmendError as error:
            problem = f"cannot {undo.in_words()}: {error}"
    return problem


def mend_orphans(folder: UndoFolder) -> list[Mended]:
    """Undo what injectors have left whose supervisors are gone, too."""
    mended = []
    with folder.orphans() as orphans:
        for injection_id in orphans:
            try:
                mended.append(mend(folder.read(injection_id), folder))
            except RankmendError as error:
                mended.append(Mended(injection_id, "unknown", "unknown", (str(error),)))
    return mended

"""From a request to its plan: cleans up what is left, finds the target, decides whether it is allowed, plans.

The command and drills both go through here, so that nothing is broken without a mark.
"""

import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rankmend.action_log import ACTION_LOG, append_action
from rankmend.errors import ConfigError, RankmendError
from recovery.lab.inject.injector import START_S_MAX, Injected, inject, plan_fault
from recovery.lab.inject.marks_file import MARKS, read_marks
from recovery.lab.inject.mending import Mended, mend_orphans
from recovery.lab.inject.permission import NodeMarks, why_refused
from recovery.lab.inject.plan import FaultPlace, FaultPlan
from recovery.lab.inject.request import FaultRequest, check_request
from recovery.lab.inject.targets import find_target
from recovery.lab.inject.undo_journal import ROOT_FOLDER, UndoFolder

AHEAD_S_MAX: Final = 600.0


class NotAllowedError(RankmendError):
    """The job or the node does not allow this fault."""


@dataclass(frozen=True, slots=True)
class InjectPlaces:
    """The folders and files that `rankmend inject` uses."""

    state: Path
    undo: UndoFolder
    marks: Path = MARKS
    action_log: Path | None = None


def undo_folder(state: Path, named: Path | None) -> UndoFolder:
    """Return where the injections of this user lie: root's survive a reboot in one place of the node."""
    return UndoFolder(named or (ROOT_FOLDER if os.geteuid() == 0 else state / "inject"))


def prepare(request: FaultRequest, places: InjectPlaces) -> tuple[FaultPlace, FaultPlan]:
    """Return where the fault is made and what that comes to; raise NotAllowedError where it may not be."""
    check_request(request)
    found = find_target(request.target, places.state)
    if found.path is not None:
        request = replace(request, target=replace(request.target, name=found.path))
    marks = read_marks(places.marks)
    why = why_refused(request, marks, found.job, os.geteuid())
    if why is not None:
        raise NotAllowedError(f"{request.fault.value} on {request.target} is refused: {why}")
    place = FaultPlace(
        request,
        found,
        marks or NodeMarks(),
        secrets.token_hex(8),
        time.clock_gettime(time.CLOCK_BOOTTIME) + START_S_MAX + request.for_s,
        places.undo.path,
    )
    return place, plan_fault(place)


def carry_out(
    place: FaultPlace, plan: FaultPlan, places: InjectPlaces, tell: Callable[[str], None]
) -> Injected:
    """Make the fault and undo it at its end; root's goes into the node's log of actions, too."""
    places.undo.make()
    refuse_leftovers(mend_orphans(places.undo), places.undo)
    place = _await_moment(place)
    _log(places, "inject", place, {"steps": list(plan.steps)})
    made = inject(place, plan, places.undo, tell)
    fields = {"ended_by": made.ended_by, "problems": list(made.problems)}
    _log(places, "inject_undone", place, fields)
    return made


def _await_moment(place: FaultPlace) -> FaultPlace:
    """Wait until the moment of the fault; its time begins then. Raise ConfigError for one too far ahead."""
    at_unix_s = place.request.at_unix_s
    wait_s = 0.0 if at_unix_s is None else at_unix_s - time.time()
    if wait_s > AHEAD_S_MAX:
        raise ConfigError(
            f"--at {at_unix_s:.0f} is {wait_s:.0f} s ahead: want at most {AHEAD_S_MAX:g} s"
        )
    if wait_s <= 0:
        return place
    time.sleep(wait_s)
    return replace(place, until_boot_s=place.until_boot_s + wait_s)


def refuse_leftovers(mended: list[Mended], folder: UndoFolder) -> None:
    """Raise where an earlier fault still stands: no other is made on top of it."""
    for item in mended:
        if item.problems:
            raise ConfigError(
                f"an earlier {item.fault} on {item.target} ({item.injection_id}) is not undone: {'; '.join(item.problems)}. "
                f"Once you have seen to that yourself, remove {folder.path / item.injection_id}.json"
            )


def _log(
    places: InjectPlaces, action: str, place: FaultPlace, fields: Mapping[str, object]
) -> None:
    path = places.action_log or (ACTION_LOG if os.geteuid() == 0 else None)
    if path is not None:
        request = place.request
        body = {"id": place.injection_id, "fault": request.fault.value, "on": str(request.target)}
        append_action(path, action, {**body, **fields, "uid": os.getuid()})

"""The list of places in docs/operate/security.md, against the code that decides."""

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from recovery.journal.witnesses import ENOUGH, PLACES, ActPlace, OutsideAct, allows
from recovery.service.http.routes import ROUTES
from recovery.service.roles import WITNESS_OF, Role

ROOT = Path(__file__).resolve().parents[4]
ACTS = [place for place in PLACES if place.act is not None]


def code_of(place: ActPlace) -> str:
    module, _colon, path = place.decided_by.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return inspect.getsource(found)


@pytest.mark.parametrize("place", ACTS, ids=lambda place: place.what)
def test_each_place_decides_by_the_table_about_the_act_that_it_names(place: ActPlace) -> None:
    assert place.act is not None
    assert f"OutsideAct.{place.act.name}" in code_of(place)
    assert not place.needs, "the table says so"
    assert place.bounds
    assert place.refused


@pytest.mark.parametrize(
    "place", [place for place in PLACES if place.act is None], ids=lambda place: place.what
)
def test_each_place_without_a_witness_of_its_own_has_a_bound_in_its_code(place: ActPlace) -> None:
    code = code_of(place)

    assert place.needs
    assert any(bound in code or "_beyond_bounds" in code for bound in place.bounds)


def test_every_decision_by_the_table_is_in_the_list_and_every_act_has_a_place() -> None:
    listed = {place.decided_by.rpartition(":")[2].rpartition(".")[2] for place in ACTS}
    deciding = set()
    for path in sorted((ROOT / "recovery").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "OutsideAct" not in text or path.name == "witnesses.py":
            continue
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef) and _decides(function):
                deciding.add(function.name)

    assert deciding == listed
    assert {place.act for place in ACTS} == set(OutsideAct) == set(ENOUGH)


def _decides(function: ast.FunctionDef) -> bool:
    """Return whether a function asks the table about an act by its name."""
    return any(
        isinstance(call, ast.Call)
        and getattr(call.func, "id", getattr(call.func, "attr", "")) in ("allows", "_vouched")
        and any("OutsideAct." in ast.unparse(argument) for argument in call.args)
        for call in ast.walk(function)
    )


def test_what_agents_report_of_watched_jobs_comes_from_roles_whose_word_drains() -> None:
    (route,) = [route for route in ROUTES if (route.method, route.path) == ("POST", "/v1/watched")]

    assert set(route.roles) == {Role.ALERT, Role.REPORT}
    assert all(allows(OutsideAct.DRAIN, {WITNESS_OF[role]}) for role in route.roles)

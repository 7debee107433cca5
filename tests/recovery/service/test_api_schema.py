"""The API against its own OpenAPI description: requests that fit it and requests that don't, by schemathesis."""

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import msgspec
import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from recovery.service import controller_config
from recovery.service.http.route import RequestKind, Route
from recovery.service.http.routes import ROUTES
from tests.support.eventually import DEADLINE_S
from tests.support.service import Running, make_folder, running, two_speakers

pytestmark = pytest.mark.process

EXAMPLES = 12  # for each operation: 26 operations then take some 15 s


def without_limits(one: controller_config.Config) -> controller_config.Config:
    limits = controller_config.Limits(
        reports_per_node=1e5, launches=1e5, alerts=1e5, reads=1e5, acts=1e5, connections=1000
    )
    # Each job that a generated request joins has a journal.
    jobs = controller_config.JobsSection(at_once_max=100, of_subject_percent=100.0)
    return msgspec.structs.replace(one, limits=limits, jobs=jobs)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("schema") / "files"
    make_folder(folder)
    with running(folder, without_limits) as up:
        two_speakers(up.client("admin"))  # so that lists have something in them
        yield up


@pytest.fixture(scope="module")
def schemathesis() -> ModuleType:
    """Import it where it is used: it takes a second, and every worker imports every test."""
    return pytest.importorskip("schemathesis")


@pytest.fixture(scope="module")
def checks(schemathesis: ModuleType) -> tuple[Callable[..., Any], ...]:
    """What must hold of an answer; the last, that bad data is refused, not for every request."""
    openapi = pytest.importorskip("schemathesis.specs.openapi.checks")
    return (
        schemathesis.checks.not_a_server_error,
        openapi.status_code_conformance,
        openapi.content_type_conformance,
        openapi.response_schema_conformance,
        openapi.negative_data_rejection,
    )


@pytest.fixture(scope="module")
def session(up: Running) -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False  # an environment with an authority of its own
        session.verify = str(up.ca)
        token = (up.folder / "admin.token").read_text().strip()
        session.headers["Authorization"] = f"Bearer {token}"
        yield session


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_answers_fit_the_description_and_what_does_not_fit_is_refused(
    up: Running,
    session: requests.Session,
    schemathesis: ModuleType,
    checks: tuple[Callable[..., Any], ...],
    route: Route,
) -> None:
    schema = schemathesis.openapi.from_dict(session.get(f"{up.url}/openapi.json").json())
    schema.config.update(base_url=up.url)
    refusals = schema.config.checks.negative_data_rejection
    refusals.expected_statuses = [*refusals.expected_statuses, "413"]  # nor is a large body taken
    operation = schema[route.path][route.method]
    modes = [schemathesis.GenerationMode.POSITIVE]
    if route.body is not None or route.query is not None or "{" in route.path:
        modes.append(schemathesis.GenerationMode.NEGATIVE)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(operation.as_strategy(generation_mode=mode) for mode in modes))
    def check(case: Any) -> None:
        if case.query and "wait" in case.query:
            case.query["wait"] = 0
        # a launcher may be newer than we: what it says beyond what we know is passed over
        told = checks if route.kind is not RequestKind.LAUNCH else checks[:-1]
        case.call_and_validate(session=session, verify=str(up.ca), checks=told, timeout=DEADLINE_S)

    check()

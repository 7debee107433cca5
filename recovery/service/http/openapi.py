"""The OpenAPI 3.1 description of the API, made from its routes."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from recovery.api import wire
from recovery.service.http.call import PATH_PARTS
from recovery.service.http.route import GivesPage, RequestKind, Route
from recovery.service.roles import Role

_TEXTS: Final = {
    400: "The request is malformed",
    401: "Not authenticated",
    403: "Not allowed",
    404: "Not found",
    409: "The request conflicts with the current state",
    410: "The job has ended",
    413: "The body is too large",
    415: "The body is compressed",
    429: "Too many requests",
    503: "Unavailable: try again",
}


def describe(routes: Iterable[Route[Any, Any, Any]], version: str) -> dict[str, Any]:
    """Return the description of the routes."""
    types: set[Any] = {wire.Problem}
    for route in routes:
        types |= {item for item in _types(route) if item is not None}
    listed = [item for item in types if isinstance(item, type)]
    schemas, parts = msgspec.json.schema_components(
        [*listed, list[wire.Target]], ref_template="#/components/schemas/{name}"
    )
    by_type = dict(zip([*listed, "targets"], schemas, strict=True))

    def schema(wanted: Any) -> Any:
        if wanted == list[wire.Target]:
            return by_type["targets"]
        if wanted in by_type:
            return by_type[wanted]
        if wanted == list[dict[str, Any]]:
            return {"type": "array", "items": {"type": "object"}}
        return {"type": "object"}

    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema, parts)
    return {
        "openapi": "3.1.0",
        "info": {"title": "rankmend controller", "version": version},
        "paths": paths,
        "components": {
            "schemas": parts,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "certificate": {"type": "mutualTLS"},
            },
        },
    }


def _types(route: Route[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Return the types of body, answer and query; None where there is none."""
    body, query = route.body, route.query
    return body and body.schema, route.gives.schema, query and query.kind


def _operation(route: Route[Any, Any, Any], schema: Any, parts: dict[str, Any]) -> dict[str, Any]:
    body, answer, _query = _types(route)
    statuses = {400, 503, *route.also}
    if route.kind is not RequestKind.OPEN:
        statuses |= {401, 403, 429}
    if body is not None:
        statuses |= {413, 415}
    problem = {"application/json": {"schema": schema(wire.Problem)}}
    if answer is None:
        forms = ["text/plain"]
        if isinstance(route.gives, GivesPage):
            forms.append("application/openmetrics-text")
        content = {form: {"schema": {"type": "string"}} for form in forms}
    else:
        content = {"application/json": {"schema": schema(answer)}}
    responses: dict[str, Any] = {
        str(route.status): {"description": "Done", "content": content},
        "307": {"description": "Another controller handles this: see Location"},
    }
    for status in sorted(statuses - {204}):
        responses[str(status)] = {"description": _TEXTS[status], "content": problem}
    if 204 in statuses:
        responses["204"] = {"description": "No newer order within the wait"}
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "responses": responses,
        "parameters": [*_path_parameters(route), *_query_parameters(route, schema, parts)],
    }
    if route.roles:
        roles = "Roles: " + ", ".join(role.value for role in route.roles)
        own = ". With read: the subject's own jobs; those of others do not exist for it"
        operation["description"] = roles + (own if Role.READ in route.roles else "")
        operation["security"] = [{"token": []}]
        if Role.REPORT in route.roles:
            operation["security"].append({"certificate": []})
    else:
        operation["security"] = [{}]
    if body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema(body)}},
        }
    return operation


def _path_parameters(route: Route[Any, Any, Any]) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": msgspec.json.schema(PATH_PARTS[name]),
        }
        for name in names
    ]


def _query_parameters(
    route: Route[Any, Any, Any], schema: Any, parts: dict[str, Any]
) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    reported = parts[schema(route.query.kind)["$ref"].rpartition("/")[2]]
    required = reported.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": item}
        for name, item in reported["properties"].items()
    ]

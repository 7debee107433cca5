"""Lists that the API server cuts off in the middle: 410 Gone, as of a list that has grown too old, or 500."""

from typing import Any

import pytest

from rankmend.kubernetes_api import KubernetesError
from recovery.schedulers.kubernetes.client import KubernetesClient


class CutList:
    """A list of two nodes, a page each; the second page fails the first time."""

    timeout_s = 5.0

    def __init__(self, status: int) -> None:
        self._failures = [status]

    def call(
        self,
        method: str,
        path: str,
        query: Any = (),
        body: object = None,
        *,
        sends: str = "",
    ) -> dict[str, Any]:
        assert (method, path, body, sends) == ("GET", "/api/v1/nodes", None, "")
        is_second = ("continue", "token") in query
        if is_second and self._failures:
            raise KubernetesError(f"GET {path}: {self._failures.pop()}: expired")
        name = "n2" if is_second else "n1"
        more = {} if is_second else {"continue": "token"}
        return {"items": [{"metadata": {"name": name}}], "metadata": more}


@pytest.mark.parametrize("status", [410, 500])
def test_a_list_that_is_cut_off_is_an_error_and_no_proof_that_the_rest_is_gone(status: int) -> None:
    client = KubernetesClient(CutList(status), list_over=1, page=1)  # type: ignore[arg-type]

    with pytest.raises(KubernetesError, match=str(status)):
        client.node_objects(["n1", "n2"])
    again = client.node_objects(["n1", "n2"])

    assert sorted(again) == ["n1", "n2"]

"""What the node agent, which has a helper with root's rights, exports of the ACS of PCIe bridges.

Source: rankmend_version_info{component="pcie_acs"} of agent/collectors/versions.py. A page by TLS is not asked: it may want a
certificate that this user lacks.
"""

from collections.abc import Mapping
from typing import Final

from agent.doctor.node_agent import AgentSetup, page_address
from rankmend.agent_page import read_agent
from rankmend.errors import RankmendError

_ANSWER_S_MAX: Final = 2.0
_PAGE_BYTES_MAX: Final = 16 << 20  # a node of 8 GPUs has some 1 MB


def ask_agents_acs(config: AgentSetup) -> dict[str, str]:
    """Return by bridge which redirects are on, in the words of the exported version; nothing where no agent tells."""
    if config.has_tls:
        return {}
    try:
        url = f"http://{page_address(config)}/metrics"
        page = read_agent(url, bytes_max=_PAGE_BYTES_MAX, timeout_s=_ANSWER_S_MAX)
        return _redirects_in(page.decode("utf-8"))
    except (RankmendError, ValueError, ImportError):
        return {}


def _redirects_in(page: str) -> dict[str, str]:
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - 30 ms

    labels: list[Mapping[str, str]] = [
        sample.labels
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "rankmend_version_info"
    ]
    return {one["device"]: one["version"] for one in labels if one["component"] == "pcie_acs"}

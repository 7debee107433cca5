"""What can make a rank slow, and how hardware shows it: the table behind `detectors.slow.causes`.

Each row is a cause. Any one of its `signs` is enough to name it; `supports` are shown beside the
signs and name nothing. docs/use/diagnose-slow.md shows the table; a test compares it with this file.
"""

from typing import Final

from detectors.slow.device_causes import DEVICE_CAUSES
from detectors.slow.node_causes import NODE_CAUSES

CAUSES: Final = (*DEVICE_CAUSES, *NODE_CAUSES)


INFO: Final = frozenset(
    {
        "rankmend_rank_info",
        "rankmend_rank_gpu_info",
        "rankmend_rank_nic_info",
        "rankmend_rank_cgroup_info",
        "rankmend_nic_port_info",
    }
)


METRICS: Final = INFO | {
    sign.metric for cause in CAUSES for sign in (*cause.signs, *cause.supports)
}


def _selections() -> dict[str, tuple[str, frozenset[str]] | None]:
    """Return which series of each metric are looked at: label and values, None for all."""
    chosen: dict[str, tuple[str, frozenset[str]] | None] = dict.fromkeys(INFO)
    for cause in CAUSES:
        for sign in (*cause.signs, *cause.supports):
            known = chosen.get(sign.metric)
            if sign.metric in chosen and (known is None or sign.where is None):
                chosen[sign.metric] = None
            elif known is not None and sign.where is not None and known[0] == sign.where[0]:
                chosen[sign.metric] = (known[0], known[1] | sign.where[1])
            else:
                chosen[sign.metric] = sign.where if known is None else None
    return chosen


SELECTIONS: Final = _selections()

"""Reads what `detectors/doctor/rdma.py` judges."""

import resource

from agent.collectors.nic import NicCollector
from agent.doctor.pci import count_infiniband
from agent.doctor.places import Places
from agent.sources.pci_topology import list_known
from detectors.doctor.rdma import RdmaFacts, RdmaPort
from rankmend.errors import NoSourceError, SourceError


def read_rdma(
    places: Places, excluded: tuple[str, ...] = (), limit: tuple[int, int] | None = None
) -> RdmaFacts:
    """``excluded``: [nic] exclude of the agent. ``limit``: soft and hard; None: this process's own."""
    ports, error = [], ""
    try:
        for metric in NicCollector(places.sysfs, excluded).collect():
            if metric.name == "rankmend_nic_port_state_id":
                labels = dict(metric.labels)
                ports.append(RdmaPort(f"{labels['device']}/{labels['port']}", int(metric.value)))
    except NoSourceError:
        pass
    except SourceError as failure:
        error = str(failure)
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK) if limit is None else limit
    return RdmaFacts(
        cards=count_infiniband(places.sysfs),
        devices=len(list_known(places.sysfs / "class" / "infiniband", [])),
        ports=tuple(ports),
        error=error,
        has_verbs_files=any(places.at("dev/infiniband").glob("uverbs*"))
        if places.is_live
        else None,
        memlock_bytes=None if soft == resource.RLIM_INFINITY else soft,
        memlock_max_bytes=None if hard == resource.RLIM_INFINITY else hard,
        is_limit_known=places.is_live,
    )

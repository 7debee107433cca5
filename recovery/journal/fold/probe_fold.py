"""What the records of probes of the network change in the ledger. Pure."""

from recovery.journal.fold.changed_copy import replace
from recovery.journal.ledger import Ledger, ProbesNow
from recovery.journal.probe_records import FabricProbeAsked, FabricProbeEnded, FabricProbeSkipped


def fold_fabric_probe_asked(record: FabricProbeAsked, ledger: Ledger) -> Ledger:
    return replace(ledger, probes=ProbesNow(asked=record, slow_nodes=ledger.probes.slow_nodes))


def fold_fabric_probe_skipped(record: FabricProbeSkipped, ledger: Ledger) -> Ledger:
    return replace(ledger, probes=replace(ledger.probes, skipped=record))


def fold_fabric_probe_ended(record: FabricProbeEnded, ledger: Ledger) -> Ledger:
    probes = ledger.probes
    if probes.asked is None or probes.asked.probe_id != record.probe_id:
        return ledger
    slow_nodes = probes.slow_nodes
    if record.verdict is not None:
        slow_nodes = (slow_nodes - set(probes.asked.nodes)) | set(record.slow_nodes)
    return replace(ledger, probes=replace(probes, ended=record, slow_nodes=slow_nodes))

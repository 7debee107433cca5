"""Rows of the cause table: network, CPU, memory and storage of a node."""

from typing import Final

from detectors.finding import Action
from detectors.slow.explanation import (
    IN_ANY,
    IN_COMMUNICATION,
    IN_IO,
    LOST_MIN,
    LOST_SOURCE,
    Directness,
    Scope,
    Sign,
    SlowCause,
    SlowSection,
    Statistic,
    pressure,
    rate,
)
from detectors.slow.hardware_reading import RUN_QUEUE

_DIRTY: Final = Sign(
    "rankmend_host_memory_dirty_bytes",
    Statistic.LEVEL,
    1.0,
    "memory not yet written to disk",
    "B",
    "twice the peers'; below 256 MiB a write-back is over within a second",
    is_share=True,
    floor=256 * 2**20,
)
_DISK_READS: Final = Sign(
    "rankmend_disk_read_bytes_total",
    Statistic.RATE,
    1.0,
    "read from local disks",
    "B/s",
    "twice the peers', and more than 10 MB/s: reads of logs and libraries stay below",
    is_share=True,
    floor=10e6,
)
_MEMORY_SHORT: Final = Sign(
    "rankmend_host_memory_available_bytes",
    Statistic.LEVEL,
    0.2,
    "memory available",
    "B",
    "own choice: ranks of one job take alike, so a fifth less is the node's own",
    is_low=True,
    is_share=True,
)

NODE_CAUSES: Final[tuple[SlowCause, ...]] = (
    SlowCause(
        "nic_degraded",
        IN_COMMUNICATION,
        Scope.NIC,
        Directness.DEGRADED,
        tuple(
            Sign(
                metric,
                Statistic.HIGHEST,
                LOST_MIN,
                "rate of the link",
                "B/s",
                LOST_SOURCE,
                is_low=True,
                is_share=True,
            )
            for metric in (
                "rankmend_nic_rate_bytes_per_second",
                "rankmend_ethernet_speed_bytes_per_second",
            )
        ),
        "the NIC's link is slower than its peers'",
        Action.DRAIN,
    ),
    SlowCause(
        "nic_paused",
        IN_COMMUNICATION,
        Scope.NIC,
        Directness.LOST_TIME,
        tuple(
            rate(f"rankmend_ethernet_{name}_seconds_total", LOST_MIN, what, LOST_SOURCE, "s/s")
            for name, what in (
                ("priority_pause", "stopped by pause frames of a priority"),
                ("pause", "stopped by pause frames"),
            )
        ),
        "pause frames stop the NIC",
        Action.WATCH,
        (
            rate(
                "rankmend_ethernet_priority_pause_frames_total",
                100.0,
                "pause frames of a priority",
                "as check nic_discards: 100/s",
            ),
        ),
    ),
    SlowCause(
        "nic_flapping",
        IN_COMMUNICATION,
        Scope.NIC,
        Directness.ERRORS,
        (
            rate(
                "rankmend_nic_link_downed_total",
                1 / 600,
                "times that the link went down",
                "NVSentinel: any is fatal; in 10 minutes as check nic_link_downed",
            ),
            rate(
                "rankmend_ethernet_carrier_changes_total",
                2 / 600,
                "times that the link came or went",
                "NVSentinel: more than 2 an interval",
            ),
            rate(
                "rankmend_nic_link_error_recoveries_total",
                5 / 60,
                "link recoveries",
                "NVSentinel: more than 5 a minute",
            ),
        ),
        "the NIC's link flaps",
        Action.DRAIN,
    ),
    SlowCause(
        "nic_errors",
        IN_COMMUNICATION,
        Scope.NIC,
        Directness.ERRORS,
        (
            rate(
                "rankmend_nic_symbol_errors_total",
                120 / 3600,
                "symbol errors",
                "NVSentinel: more than 120 an hour (IBTA, bit error rate 1e-12)",
            ),
            rate(
                "rankmend_nic_receive_errors_total",
                10.0,
                "packets received with an error",
                "NVSentinel: more than 10/s",
            ),
            rate(
                "rankmend_nic_transmit_discards_total",
                100.0,
                "packets discarded",
                "NVSentinel: more than 100/s",
            ),
            rate(
                "rankmend_ethernet_link_errors_total",
                10.0,
                "errors at the port",
                "as receive errors: 10/s",
                where="kind=crc symbol uncorrected_symbol receive_discard transmit_discard",
            ),
        ),
        "the NIC's link has errors",
        Action.DRAIN,
    ),
    SlowCause(
        "nic_retransmits",
        IN_COMMUNICATION,
        Scope.NIC,
        Directness.ERRORS,
        (
            rate(
                "rankmend_nic_hardware_total",
                1.0,
                "acknowledgements that did not come",
                "NVSentinel: local_ack_timeout_err more than 1/s",
                where="counter=local_ack_timeout_err",
            ),
            rate(
                "rankmend_nic_hardware_total",
                10.0,
                "retransmits and packets out of order",
                "NVSentinel: roce_slow_restart more than 10/s",
                where="counter=roce_slow_restart roce_adp_retrans roce_adp_retrans_to"
                " packet_seq_err out_of_sequence implied_nak_seq_err",
            ),
        ),
        "the NIC retransmits lost packets",
        Action.DRAIN,
    ),
    SlowCause(
        "cpu_throttled",
        IN_ANY,
        Scope.CGROUP,
        Directness.LOST_TIME,
        (
            rate(
                "rankmend_cgroup_cpu_throttled_seconds_total",
                LOST_MIN,
                "kept from running by the CPU quota",
                LOST_SOURCE,
                "s/s",
            ),
        ),
        "the CPU quota of the rank's control group is used up",
        Action.WATCH,
    ),
    SlowCause(
        "cpu_taken",
        IN_ANY,
        Scope.RANK,
        Directness.WAITING,
        (
            rate(
                RUN_QUEUE,
                LOST_MIN,
                "ready to run and without a CPU",
                LOST_SOURCE,
                "s/s",
            ),
        ),
        "other processes take the rank's CPU",
        Action.WATCH,
        implied_by="cpu_throttled",
    ),
    SlowCause(
        "cpu_crowded",
        IN_ANY,
        Scope.NODE,
        Directness.WAITING,
        (pressure("cpu", "tasks waited for a CPU"),),
        "tasks on the node wait for a CPU",
        Action.WATCH,
    ),
    SlowCause(
        "memory_short",
        frozenset({SlowSection.COMPUTE, SlowSection.IO}),
        Scope.NODE,
        Directness.WAITING,
        (
            pressure("memory", "tasks waited for memory"),
            rate(
                "rankmend_host_swap_in_bytes_total",
                1e6,
                "read back from swap",
                "own choice: 250 pages a second, each a wait for a disk",
                "B/s",
            ),
        ),
        "tasks on the node wait for memory",
        Action.WATCH,
        (_MEMORY_SHORT,),
    ),
    SlowCause(
        "storage_wait",
        IN_IO,
        Scope.NODE,
        Directness.WAITING,
        (
            pressure("io", "tasks waited for storage"),
            Sign(
                "rankmend_mount_answer_seconds",
                Statistic.LEVEL,
                0.1,
                "answer of its slowest file system",
                "s",
                "own choice: an answer takes milliseconds on a healthy mount (docs/reference/host.md)",
            ),
        ),
        "tasks on the node wait for storage",
        Action.WATCH,
        (_DIRTY, _DISK_READS),
    ),
    SlowCause(
        "page_cache_short",
        IN_IO,
        Scope.NODE,
        Directness.CIRCUMSTANCE,
        (_DISK_READS,),
        "the node reads from disk what its peers have in memory",
        Action.WATCH,
        (_MEMORY_SHORT,),
    ),
)

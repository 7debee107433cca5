"""Messages of NVIDIA's fabric manager, which writes a log of its own (/var/log/fabricmanager.log).

    [Jul 23 2024 07:53:55] [ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id ...

Only in that file: any user may write a line with its name to syslog. A machine without NVSwitches on which
someone installed it says so with an error each time it starts, and is well.
"""

from typing import Final

from detectors.kernel.event import PCI, EventKind, Rule, rule

_K = EventKind
_SWITCH: Final = r"(?: on fid \d{1,4})?(?: on NVSwitch)?(?: pci bus id (?P<pci>" + PCI + r"))?"

FABRIC_RULES: Final[tuple[Rule, ...]] = (
    *(
        rule(
            f"detected NVSwitch {words} error",
            rf"detected NVSwitch {words} error (?P<code>\d{{1,9}})" + _SWITCH,
            _K.SXID,
            "gpud fabric-manager, as the driver's own SXid line (NVIDIA Fabric Manager user guide)",
            sub_code=sub_code,
        )
        for words, sub_code in (("fatal", "fatal"), ("non-fatal", "nonfatal"))
    ),
    rule(
        "failed to find the GPU handle",
        r"failed to find the GPU handle (?P<code>\d{1,20}) in the multicast team",
        _K.FABRIC_MULTICAST,
        "gpud fabric-manager: nvswitch_nvlink_failure",
    ),
    rule(
        "match with any supported system topology",
        r"detected number of (?P<sub_code>NVSwitches) don't match with any supported system topology",
        _K.FABRIC_DOWN,
        "gpud fabric-manager: nvswitch_topology_mismatch",
    ),
    rule(
        "is excluded, aborting fabric manager",
        r"more than one (?P<sub_code>NVSwitch) is excluded, aborting fabric manager",
        _K.FABRIC_DOWN,
        "NVIDIA Fabric Manager: with more than one switch left out it ends, and no link is set up",
    ),
)

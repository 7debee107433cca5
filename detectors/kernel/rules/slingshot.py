"""Messages of HPE's Slingshot cards: how bad an error is, its class says, and for some the driver or the vendor's guide."""

from typing import Final

from detectors.kernel.event import PCI, EventKind, Rule, rule

_K = EventKind

# cxi_core, since release 12 cxi_ss1: the card's name, and its interface's where it has one
_CXI: Final = r"cxi_\w{2,8} (?P<pci>" + PCI + r"): cxi\d{1,4}\[[\w.-]{0,32}\]"

SLINGSHOT_RULES: Final[tuple[Rule, ...]] = (
    rule(
        "C_EC_",
        _CXI + r": C_EC_(?:UNCOR_N?S|CRIT): \w{1,40} error: "
        r"(?P<sub_code>\w{0,48}(?:ucor|mbe)\w{0,48}|credit_uflw|tct_tbl_dealloc)\b",
        _K.NIC_FAULT,
        "shs-cxi-driver, cass_errors.c, cass_hni.c; host guide, Kernel Severity CRIT: drain; tct_tbl_dealloc: no RDMA until a boot",
        needles=("C_EC_UNCOR", "C_EC_CRIT"),
    ),
    rule(
        "C_EC_",
        _CXI + r": C_EC_(?:UNCOR_N?S|CRIT): \w{1,40} error: "
        r"(?!llr_eopb\b|pri_rbyp_abort\b)(?P<sub_code>\w{1,64})",
        _K.NIC_WARNING,
        "the same: llr_eopb is of a bad link, pri_rbyp_abort of a corrected PCIe error; port_dfa_mismatch came to many nodes at once",
        needles=("C_EC_UNCOR", "C_EC_CRIT"),
    ),
    rule(
        "Disabling device",
        _CXI + r":? (?P<sub_code>Disabling device)\b",
        _K.NIC_FAULT,
        "shs-cxi-driver, cass_core.c, cass_disable_device: after an unrecoverable error",
    ),
    rule(
        "serdes fw corruption alert",
        _CXI + r":? \(sbl\): \d{1,3}: (?P<sub_code>serdes fw corruption)",
        _K.NIC_FAULT,
        "shs-cxi-driver, cass_sbl.c; host guide, Kernel Severity CRIT",
    ),
    *(
        rule(
            "ATT1_SENSOR_ALERT",
            _CXI + r":? uC: ATT1_SENSOR_ALERT: sensor '[^'\n]{1,48}' \(\d{1,6}\) in "
            rf"(?P<sub_code>{words})",
            kind,
            "shs-cxi-driver, cass_uc.c: logs the fatal one alone as an error; DSP0248, PLDM: beyond a fatal limit a part is damaged or does not work",
        )
        for words, kind in (
            ("fatal state", _K.NIC_FAULT),
            ("(?:critical|warning) state", _K.NIC_WARNING),
        )
    ),
    rule(
        "QSFP_EPO_TEMPERATURE",
        _CXI + r":? uC: (?P<sub_code>QSFP_EPO_TEMPERATURE)",
        _K.TRANSCEIVER_HOT,
        "shs-cxi-driver, cass_uc.c: the cage is switched off",
    ),
    *(
        rule(
            "CXI_EVENT_LINK_",
            r"cxi_\w{2,8} (?P<pci>"
            + PCI
            + r"): cxi\d{1,4}\[(?P<netdev>[\w.-]{0,32})\]:? CXI_EVENT_LINK_"
            + way,
            kind,
            "shs-cxi-driver, cass_phy.c",
        )
        for way, kind in (("DOWN", _K.LINK_DOWN), ("UP", _K.LINK_UP))
    ),
    rule(
        "uC not detected",
        _CXI + r":? (?P<sub_code>uC not detected)",
        _K.NIC_WARNING,
        "shs-cxi-driver, cass_uc.c, cass_register_uc: no sensors; where the card does not start without it, the probe says so",
    ),
    rule(
        "HSN cable is not plugged",
        _CXI + r":? (?P<sub_code>HSN cable is not plugged)",
        _K.TRANSCEIVER,
        "shs-cxi-driver, cass_cable.c; an empty cage: detectors/kernel/rules/cages.py",
    ),
    rule(
        "cxi_",
        _CXI + r":? (?P<sub_code>init_hw failed|cass_irq_init failed|Cannot register the uC): ",
        _K.NIC_INIT,
        "shs-cxi-driver, cass_core.c, cass_probe",
        needles=("init_hw failed", "cass_irq_init failed", "Cannot register the uC"),
    ),
)

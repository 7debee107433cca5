"""Messages of RAID and SAS controllers."""

from typing import Final

from detectors.kernel.event import PCI, EventKind, Rule, rule

_K = EventKind

CONTROLLER_RULES: Final[tuple[Rule, ...]] = (
    rule(
        "megaraid_sas",
        r"megaraid_sas (?P<pci>" + PCI + r"): .{0,60}?(?P<sub_code>HBA is killed|OCR failed"
        r"|cannot recover from previous reset|Adapter already dead|[Kk]illing adapter"
        r"|[Dd]iag reset adapter never cleared|Failed to transition controller to ready)",
        _K.STORAGE_FAULT,
        "drivers/scsi/megaraid/megaraid_sas_base.c, megaraid_sas_fusion.c",
    ),
    rule(
        "megaraid_sas",
        r"megaraid_sas (?P<pci>" + PCI + r"): .{0,60}?"
        r"(?P<sub_code>FW in FAULT state|FW detected to be in fault)",
        _K.IO_ERROR,
        "drivers/scsi/megaraid/megaraid_sas_base.c: the driver resets it, and says so where it can't; hwraid#136",
    ),
    rule(
        "megasas: ",
        r"(?:(?:sd|scsi) [\d:]{1,32}: )?megasas: (?P<sub_code>cannot recover from previous reset failures|failed to do reset)",
        _K.STORAGE_FAULT,
        "drivers/scsi/megaraid/megaraid_sas.c before 4.9: names no device; a RESET that succeeds is no fault, TIGRLab/admin#896",
        needles=("megasas: cannot recover", "megasas: failed to do reset"),
    ),
    rule(
        "smartpqi ",
        r"smartpqi (?P<pci>" + PCI + r"): (?P<sub_code>controller (?:is )?offline"
        r"|controller not ready after|reset recovery failed)",
        _K.STORAGE_FAULT,
        "drivers/scsi/smartpqi/smartpqi_init.c, pqi_take_ctrl_offline; smartpqi_sis.c",
        needles=(
            *("controller offline", "controller is offline", "controller not ready after"),
            "reset recovery failed",
        ),
    ),
    rule(
        "resetting scsi ",
        r"smartpqi (?P<pci>" + PCI + r"): resetting scsi (?P<sub_code>[\d:]{1,32}) due to cmd ",
        _K.IO_ERROR,
        "drivers/scsi/smartpqi/smartpqi_init.c, pqi_eh_device_reset_handler: a command timed out",
    ),
    rule(
        "ontroller lockup detected",
        r"hpsa (?P<pci>" + PCI + r"): (?P<sub_code>[Cc]ontroller lockup detected)",
        _K.STORAGE_FAULT,
        "drivers/scsi/hpsa.c, controller_lockup_detected: all commands fail from then on",
    ),
    rule(
        ": resetting ",
        r"hpsa (?P<pci>"
        + PCI
        + r"): scsi (?P<sub_code>[\d:]{1,32}): resetting (?:logical|physical|unknown)\b",
        _K.IO_ERROR,
        "drivers/scsi/hpsa.c, hpsa_eh_device_reset_handler: a command timed out",
        needles=(": resetting logical", ": resetting physical", ": resetting unknown"),
    ),
    rule(
        "adapter kernel panic'd",
        r"(?:aacraid (?P<pci>" + PCI + r")|(?P<device>aacraid\d{1,3})): "
        r"(?P<sub_code>adapter kernel panic'd)",
        _K.IO_ERROR,
        "drivers/scsi/aacraid/src.c, rx.c: the driver resets it",
    ),
    rule(
        "attempting task abort!",
        r"(?P<disk>sd [\d:]{1,32}): attempting task abort! ?scmd",
        _K.IO_ERROR,
        "drivers/scsi/mpt3sas/mpt3sas_scsih.c, scsih_abort: a command timed out; zfs#7118",
        sub_code="task abort",
    ),
    rule(
        "mpt",
        r"(?P<device>mpt[23]sas(?:_cm)?\d{1,3}): (?P<sub_code>SAS host is non-operational"
        r"|diag reset: FAILED|(?:mpt3sas_base_)?hard_reset_handler: FAILED)",
        _K.STORAGE_FAULT,
        "drivers/scsi/mpt3sas/mpt3sas_base.c, before 4.19 mpt2sas0",
        needles=("SAS host is non-operational", "reset: FAILED", "reset_handler: FAILED"),
    ),
    rule(
        "mpt",
        r"(?P<device>mpt[23]sas(?:_cm)?\d{1,3}): (?P<sub_code>fault_state|coredump_state)",
        _K.IO_ERROR,
        "drivers/scsi/mpt3sas/mpt3sas_base.c: the driver resets it, and says so where it can't; Flatcar#12",
        needles=("fault_state", "coredump_state"),
    ),
)

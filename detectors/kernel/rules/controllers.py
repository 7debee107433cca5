"""Messages of RAID and SAS controllers."""

from typing import Final

from detectors.kernel.event import PCI, EventKind, Rule, rule

_K = EventKind

_MEGARAID_EVENT: Final = r"megaraid_sas (?P<pci>" + PCI + r"): \d{1,10} \((?:boot \+ )?\d{1,10}s"
_QLOGIC: Final = r"qla2xxx \[(?P<pci>" + PCI + r")\]-[0-9a-f]{4,5}:\d{1,4}: "

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
    # the firmware's own events: number, time, part and class, megasas_decode_evt. Of parts 0x0008 is the battery
    rule(
        "megaraid_sas",
        _MEGARAID_EVENT
        + r"/0x[0-9a-f]{1,4}/(?:CRIT|FATAL|DEAD)\) - (?P<sub_code>VD \S{1,8} is now (?:PARTIALLY )?DEGRADED)",
        _K.RAID_DEGRADED,
        "drivers/scsi/megaraid/megaraid_sas_base.c, megasas_decode_evt",
        needles=("DEGRADED",),
    ),
    rule(
        "megaraid_sas",
        _MEGARAID_EVENT + r"/0x(?!0*8/)[0-9a-f]{1,4}/(?P<sub_code>FATAL|DEAD)\) - ",
        _K.STORAGE_FAULT,
        "drivers/scsi/megaraid/megaraid_sas_base.c, megasas_decode_evt; Broadcom's event classes: a component failed and data is lost",
        needles=("/FATAL) - ", "/DEAD) - "),
    ),
    rule(
        "megaraid_sas",
        _MEGARAID_EVENT + r"/0x[0-9a-f]{1,4}/(?P<sub_code>CRIT|FATAL|DEAD)\) - ",
        _K.IO_ERROR,
        "the same: a component failed, no data is lost; the battery of a cache, too",
        needles=("/CRIT) - ", "/FATAL) - ", "/DEAD) - "),
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
        "aacraid: SCSI bus appears hung",
        r"aacraid: (?P<sub_code>SCSI bus appears hung)",
        _K.STORAGE_FAULT,
        "drivers/scsi/aacraid/linit.c, aac_eh_reset: no command ended in a minute, and few models are reset then; each public report lost its volume",
    ),
    rule(
        "timed out, resetting card",
        r"(?P<disk>(?:scsi|sd) [\d:]{1,32}|3w-\w{3,4}: scsi\d{1,4}): .{0,60}?"
        r"(?:[Cc]ommand|ioctl) \(\w{1,16}\) timed out, (?P<sub_code>resetting card)",
        _K.IO_ERROR,
        "drivers/scsi/3w-sas.c, 3w-9xxx.c, 3w-xxxx.c: the driver resets it, and says so where it can't",
    ),
    rule(
        "Controller reset failed during scsi host reset",
        r"(?P<device>3w-\w{3,4}: scsi\d{1,4}): ERROR: \(0x06:0x\w{4}\): (?P<sub_code>Controller reset failed)",
        _K.STORAGE_FAULT,
        "drivers/scsi/3w-sas.c, 3w-9xxx.c",
    ),
    rule(
        "arcmsr",
        r"(?P<device>arcmsr\d{0,4}): (?P<sub_code>abort device command|executing bus reset eh)",
        _K.IO_ERROR,
        "drivers/scsi/arcmsr/arcmsr_hba.c: commands timed out",
        needles=("abort device command", "executing bus reset eh"),
    ),
    rule(
        "waiting for hw bus reset return, RETRY TERMINATED",
        r"(?P<device>arcmsr\d{1,4}): waiting for hw bus reset return, (?P<sub_code>RETRY TERMINATED)",
        _K.STORAGE_FAULT,
        "drivers/scsi/arcmsr/arcmsr_hba.c, arcmsr_bus_reset: its firmware does not come back",
    ),
    rule(
        "board not ready, timed out",
        r"hpsa (?P<pci>" + PCI + r"): (?P<sub_code>board not ready), timed out",
        _K.IO_ERROR,
        "drivers/scsi/hpsa.c, hpsa_wait_for_board_state; so, too, an S100i, which is a RAID of software: linux-scsi, 2022-02-04",
    ),
    *(
        rule(
            "failed with error",
            r"(?P<sub_code>megaraid_sas|mpt[23]sas|mpi3mr|smartpqi|aacraid|pm80xx"
            r"|isci|mvsas|hisi_sas_v3_hw|arcmsr|3w-(?:sas|9xxx)|qla2xxx|lpfc)" + words,
            _K.STORAGE_FAULT,
            "drivers/base/dd.c, call_driver_probe; with 'with driver' since 6.4. hpsa also tries what is none of its own",
        )
        for words in (
            r": probe of (?P<pci>" + PCI + r") failed with error -\d+",
            r" (?P<pci>" + PCI + r"): probe with driver \S{1,32} failed with error -\d+",
        )
    ),
    rule(
        "Issuing IOP ",
        r"aacraid (?P<pci>" + PCI + r"): (?P<sub_code>Issuing IOP (?:hard )?reset)",
        _K.IO_ERROR,
        "drivers/scsi/aacraid/src.c, aac_src_restart_adapter: commands timed out",
    ),
    rule(
        "mpt",
        r"(?P<device>mpt[23]sas(?:_cm)?\d{1,3}): (?P<sub_code>failure) at \S{1,64}:\d{1,6}/_scsih_probe\(\)!",
        _K.STORAGE_FAULT,
        "drivers/scsi/mpt3sas/mpt3sas_scsih.c, _scsih_probe: the driver does not take the controller",
        needles=("/_scsih_probe()!",),
    ),
    rule(
        "mpi3mr",
        r"(?P<device>mpi3mr\d{1,3}): (?P<sub_code>watchdog could not detect the controller"
        r"|controller is (?:unrecoverable|not present)|flush pending commands for unrecoverable controller"
        r"|controller requires system power cycle|soft reset failed|\w{0,24}soft_reset_handler\w{0,8}: FAILED)",
        _K.STORAGE_FAULT,
        "drivers/scsi/mpi3mr/mpi3mr_fw.c, mpi3mr_watchdog_work, mpi3mr_soft_reset_handler",
        needles=(
            *("could not detect the controller", "controller is unrecoverable"),
            *(
                "controller is not present",
                "unrecoverable controller",
                "requires system power cycle",
            ),
            *("soft reset failed", "soft_reset_handler"),
        ),
    ),
    # --- Fibre Channel
    rule(
        "qla2xxx [",
        _QLOGIC
        + r"(?P<sub_code>[Dd]etected PCI disconnect|PCI/Register disconnect|Disabling adapter)",
        _K.STORAGE_FAULT,
        "drivers/scsi/qla2xxx/qla_os.c, qla2x00_disable_board_on_pci_error; qla_init.c: its registers read as ones",
        needles=("etected PCI disconnect", "PCI/Register disconnect", "Disabling adapter"),
    ),
    rule(
        "LOOP DOWN detected",
        _QLOGIC + r"(?P<sub_code>LOOP DOWN) detected",
        _K.PATH_LOST,
        "drivers/scsi/qla2xxx/qla_isr.c, qla2x00_async_event",
    ),
    rule(
        "lpfc ",
        r"lpfc (?P<pci>" + PCI + r"): \d{1,3}:(?:\(\d{1,4}\):)?"
        r"(?P<sub_code>0457 Adapter Hardware Error|0406 Adapter maximum temperature exceeded)",
        _K.STORAGE_FAULT,
        "drivers/scsi/lpfc/lpfc_init.c, lpfc_handle_eratt_s3: the port is taken offline",
        needles=("0457 Adapter", "0406 Adapter"),
    ),
    rule(
        "blocked FC remote port time out: removing",
        r" ?(?P<disk>rport-[\d:-]{3,24}): (?P<sub_code>blocked FC remote port time out)",
        _K.PATH_LOST,
        "drivers/scsi/scsi_transport_fc.c, fc_timeout_deleted_rport",
    ),
    rule(
        "Device offlined - not ready after error recovery",
        r"(?:(?P<disk>(?:sd|scsi) [\d:]{1,32})|scsi): (?P<sub_code>Device offlined) - not ready",
        _K.IO_ERROR,
        "drivers/scsi/scsi_error.c, scsi_eh_offline_sdevs: the disk is given up; most reports are of USB disks",
    ),
    # --- iSCSI: the transport writes a space before the name
    rule(
        "detected conn error (",
        r" ?(?P<disk>connection\d{1,6}:\d{1,6}): detected conn error \((?P<sub_code>\d{4})\)",
        _K.PATH_LOST,
        "drivers/scsi/scsi_transport_iscsi.c, iscsi_conn_error_event; include/scsi/iscsi_if.h, enum iscsi_err",
    ),
    rule(
        "session recovery timed out after",
        r" ?(?P<disk>session\d{1,6}): (?P<sub_code>session recovery timed out)",
        _K.PATH_LOST,
        "drivers/scsi/scsi_transport_iscsi.c, session_recovery_timedout: its disks are offline, unless another path carries on",
    ),
    rule(
        "attempting ",
        r"(?P<disk>sd [\d:]{1,32}|scsi target[\d:]{1,32}|mpt[23]sas(?:_cm)?\d{1,3}): "
        r"attempting (?P<sub_code>(?:task abort|(?:device|target|host) reset))! ?scmd",
        _K.IO_ERROR,
        "drivers/scsi/mpt3sas/mpt3sas_scsih.c, scsih_abort, scsih_dev_reset, scsih_host_reset: a command timed out; zfs#7118, zfs#704",
        needles=("attempting task abort!", "reset!"),
    ),
    # --- the SAS layer of pm80xx, isci, mvsas, hisi_sas and aic94xx
    rule(
        "sas: ",
        r"sas: (?P<sub_code>sas_scsi_find_task: aborting task|TMF task timeout)",
        _K.IO_ERROR,
        "drivers/scsi/libsas/sas_scsi_host.c: a command timed out",
        needles=("aborting task", "TMF task timeout"),
    ),
    rule(
        "pm80",
        r"(?P<device>pm80xx\d{0,4})(?:::)? \w{1,48} {1,3}\d{1,6}: ?(?P<sub_code>task abort failed|TMF task\[\d\] ?timeout)",
        _K.IO_ERROR,
        "drivers/scsi/pm8001/pm8001_hwi.c, pm8001_sas.c",
        needles=("task abort failed", "TMF task["),
    ),
    rule(
        "Firmware Fatal error!",
        r"(?P<device>pm80xx\d{0,4})(?:::)? \w{1,48} {1,3}\d{1,6}: ?(?P<sub_code>Firmware Fatal error)",
        _K.STORAGE_FAULT,
        "drivers/scsi/pm8001/pm80xx_hwi.c, process_oq: the controller takes no commands any more",
    ),
    # --- disks behind a fabric
    rule(
        "nvme",
        r"nvme (?P<disk>nvme\d{1,4}): (?P<sub_code>starting error recovery|Failed reconnect attempt)",
        _K.PATH_LOST,
        "drivers/nvme/host/tcp.c, rdma.c, fc.c: the fabric or its target does not answer",
        needles=("starting error recovery", "Failed reconnect attempt"),
    ),
    rule(
        "ib_srp: ",
        r"scsi (?P<disk>host\d{1,4}): (?:ib_srp: )?(?P<sub_code>failed (?:RECV|SEND|INV RKEY|FAST REG) status"
        r"|SRP abort called|reconnect failed|SRP reset_(?:device|host) called)",
        _K.PATH_LOST,
        "drivers/infiniband/ulp/srp/ib_srp.c, srp_handle_qp_err, srp_abort",
        needles=("ib_srp: failed", "SRP abort called", "SRP reset_"),
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

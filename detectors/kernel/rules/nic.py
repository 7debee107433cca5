"""Messages of network cards, their links, cables and drivers."""

import re
from typing import Final

from detectors.kernel.event import PCI, EventKind, KernelEvent, Rule, rule

_K = EventKind

_NAME: Final = r"[A-Za-z][\w.@-]{0,31}"
# as netdev_err and ibdev_err write it: driver, device on the bus, name. A device that is being made
# or taken away has its state behind the name, one without a bus has its name only
_NETDEV: Final = (
    r"(?:[\w-]{2,32} (?:(?P<pci>" + PCI + r")|[\w:.-]{1,32}) )?(?P<netdev>" + _NAME + r")"
    r"(?: \([\w ,]{1,40}\))?: "
)
_PCI_NETDEV: Final = r"(?P<pci>" + PCI + r")(?: (?P<netdev>" + _NAME + r"))?: "
_LINK: Final = (  # driver and PCI address, the device's name, or both; igb writes the name twice
    r"(?:[\w-]{2,32} (?P<pci>" + PCI + r")(?:: | )|[\w-]{2,32}: (?!NIC\b|Link\b))?"
    r"(?:(?<!\w)(?P<netdev>(?!(?:NIC|PCIe?|Adapter)\b)" + _NAME + r"):? )?"
    r"(?:igb: " + _NAME + r" )?(?:NIC )?Link (?:is )?"
)
# dev_err of out-of-tree drivers names the RDMA device only
_EFA: Final = (
    r"(?:efa "
    + _PCI_NETDEV
    + r"|infiniband (?P<device>rdmap\d[\ds]{0,12}(?:f\d{1,3})?|efa_\d{1,4}): )"
)
_DRIVERS: Final = (  # drivers of cards that jobs use; others fail to probe on healthy machines
    r"(?:mlx[45]_core|bnxt_en|ice|i40e|ixgbe|irdma|ena|efa|gve|idpf|hns3|hfi1|cxgb4|qede|sfc|ionic|cxi_(?:core|ss1))"
)


def _with_device(event: KernelEvent, _match: re.Match[str]) -> KernelEvent | None:
    """Return the event, or None where the line names no card: a link of something else."""
    return event if event.device else None


NIC_RULES: Final[tuple[Rule, ...]] = (
    rule(
        "tx_timeout recovery level",
        r"(?:i40e|ice|iavf|ixgbe|fm10k) (?P<pci>"
        + PCI
        + r"):? (?P<netdev>[\w.-]{1,32}): (?P<sub_code>tx_timeout) recovery level",
        _K.NIC_RESET,
        "drivers/net/ethernet/intel: i40e_main.c, ice_main.c: a queue stood still and the driver resets the card; op-build#3274",
    ),
    rule(
        "Port module event",
        r"mlx5_core (?P<pci>"
        + PCI
        + r"): .{0,40}?Port module event(?:\[error\])?: module \d{1,3}, "
        r"(?:Cable error, )?(?P<sub_code>[Hh]igh [Tt]emperature[^\n]{0,32})",
        _K.TRANSCEIVER_HOT,
        "drivers/net/ethernet/mellanox/mlx5/core/events.c",
    ),
    rule(
        "Port module event",
        r"mlx5_core (?P<pci>"
        + PCI
        + r"): .{0,40}?Port module event(?:\[error\])?: module \d{1,3}, "
        r"(?P<sub_code>Cable unplugged|Cable error[^\n]{0,64})",
        _K.TRANSCEIVER,
        "drivers/net/ethernet/mellanox/mlx5/core/events.c; an empty cage: detectors/kernel/rules/cages.py",
    ),
    rule(
        "mlx5_core",
        r"mlx5_core (?P<pci>" + PCI + r"): .{0,80}?(?P<sub_code>[Dd]etected insufficient power"
        r"|[Hh]igh temperature)",
        _K.NIC_WARNING,
        "drivers/net/ethernet/mellanox/mlx5/core/events.c: mlx5_pcie_event, temp_warn",
        needles=("etected insufficient power", "igh temperature"),
    ),
    rule(
        "mlx5_core",
        r"mlx5_core (?P<pci>" + PCI + r"): .{0,80}?(?P<sub_code>Fatal error \d{1,3} detected"
        r"|device's health compromised|firmware fatal error|health recovery (?:flow aborted|failed)"
        r"|Health issue observed, [\w ,-]{1,48}(?=, severity\([0-3]\))"
        r"|synd 0x[1-9a-f]\w{0,2}: [\w ]{1,40})",
        _K.NIC_FAULT,
        "drivers/net/ethernet/mellanox/mlx5/core/health.c; severity 4 and above is no error",
        needles=(
            *("Fatal error ", "health compromised", "firmware fatal error", "health recovery"),
            *("Health issue observed", "synd 0x"),
        ),
    ),
    rule(
        "mlx5_core",
        r"mlx5_core (?P<pci>" + PCI + r"): .{0,80}?(?P<sub_code>health recovery succeeded)",
        _K.DEVICE_RECOVERED,
        "drivers/net/ethernet/mellanox/mlx5/core/health.c, mlx5_health_try_recover",
        needles=("health recovery succeeded",),
    ),
    rule(
        "mlx5_core",
        r"mlx5_core (?P<pci>" + PCI + r"): wait_func:\d+:\(pid (?P<pid>\d{1,10})\): "
        r"(?:cmd\[\d+\]: )?(?P<sub_code>[A-Z0-9_]{1,40})\(0x[0-9a-f]{1,4}\) .{0,24}?timeout\. Will cause a leak",
        _K.NIC_HUNG,
        "drivers/net/ethernet/mellanox/mlx5/core/cmd.c: the firmware answered nothing for a minute",
        needles=("Will cause a leak",),
    ),
    rule(
        "mlx5_core",
        r"mlx5_core (?P<pci>" + PCI + r"): (?:mlx5_cmd_out_err|mlx5_cmd_check|wait_func):\d+:"
        r"\(pid (?P<pid>\d{1,10})\): (?:cmd\[\d+\]: )?(?P<sub_code>[A-Z0-9_]{1,40})",
        _K.NIC_COMMAND,
        "drivers/net/ethernet/mellanox/mlx5/core/cmd.c; a flood of ACCESS_REG: reading a limited PF",
        needles=("mlx5_cmd_out_err:", "mlx5_cmd_check:", "wait_func:"),
    ),
    rule(
        "mlx4_core",
        r"mlx4_core (?P<pci>" + PCI + r"): (?P<sub_code>Internal error detected"
        r"|device is going to be reset)",
        _K.NIC_FAULT,
        "drivers/net/ethernet/mellanox/mlx4/catas.c",
    ),
    rule(
        "mlx4_core",
        r"mlx4_core (?P<pci>"
        + PCI
        + r"): command (?P<sub_code>0x[0-9a-f]{1,4}) (?:timed out|failed)",
        _K.NIC_COMMAND,
        "drivers/net/ethernet/mellanox/mlx4/cmd.c",
    ),
    rule(
        "bnxt_en",
        r"bnxt_en " + _PCI_NETDEV + r"(?P<sub_code>Fatal firmware reset event"
        r"|Detected firmware fatal condition|Firmware reset aborted"
        r"|Failed to reinitialize after aborted firmware reset)",
        _K.NIC_FAULT,
        "drivers/net/ethernet/broadcom/bnxt/bnxt.c",
    ),
    rule(
        "bnxt_en",
        r"bnxt_en " + _PCI_NETDEV + r"(?P<sub_code>Non-fatal firmware reset event)",
        _K.NIC_RESET,
        "drivers/net/ethernet/broadcom/bnxt/bnxt.c, bnxt_async_event_process: the driver goes on",
    ),
    rule(
        "bnxt_en",
        r"bnxt_en " + _PCI_NETDEV + r"QPLIB: cmdq\[0x[0-9a-f]{1,8}\]=0x[0-9a-f]{1,8} "
        r"(?P<sub_code>timed ?out)",
        _K.NIC_HUNG,
        "drivers/infiniband/hw/bnxt_re/qplib_rcfw.c: RDMA commands of the firmware",
    ),
    rule(
        "bnxt_en",
        r"bnxt_en "
        + _PCI_NETDEV
        + r"QPLIB: cmdq\[0x[0-9a-f]{1,8}\]=(?P<sub_code>0x[0-9a-f]{1,8}) status 0x[1-9a-f]",
        _K.NIC_COMMAND,
        "drivers/infiniband/hw/bnxt_re/qplib_rcfw.c: the firmware refuses a program's queue",
    ),
    rule(
        "bnxt_en",
        r"bnxt_en " + _PCI_NETDEV + r"(?:Error|Resp cmpl intr err|hwrm) .{0,40}?"
        r"(?:msg:? \{?|req_type )(?P<sub_code>0x[0-9a-f]{1,4})",
        _K.NIC_COMMAND,
        "drivers/net/ethernet/broadcom/bnxt/bnxt_hwrm.c",
    ),
    rule(
        "The ena device ",
        r"ena " + _PCI_NETDEV + r"(?P<sub_code>The ena device (?:didn't send a completion"
        r"|sent a completion but the driver didn't receive))",
        _K.NIC_HUNG,
        "drivers/net/ethernet/amazon/ena/ena_com.c: commands of the firmware",
    ),
    rule(
        "lost tx completions",
        r"ena " + _PCI_NETDEV + r".{0,20}?(?P<sub_code>lost tx completions)",
        _K.NIC_RESET,
        "drivers/net/ethernet/amazon/ena/ena_netdev.c: the card is reset",
    ),
    rule(
        "eep alive watchdog timeout",
        r"ena " + _PCI_NETDEV + r"(?P<sub_code>[Kk]eep alive watchdog timeout)",
        _K.NIC_RESET,
        "drivers/net/ethernet/amazon/ena/ena_netdev.c: the card is reset",
    ),
    rule(
        "warm reset failed",
        r"mtk_soc_eth (?P<device>[\w.-]{1,32}): (?P<sub_code>warm reset failed)",
        _K.NIC_FAULT,
        "drivers/net/ethernet/mediatek/mtk_eth_soc.c: it sends no more until a power cycle; BPI-Router-Linux#216",
    ),
    rule(
        "Rebuild failed, unload and reload driver",
        r"ice (?P<pci>" + PCI + r"): (?P<sub_code>Rebuild failed)",
        _K.NIC_FAULT,
        "drivers/net/ethernet/intel/ice/ice_main.c, ice_rebuild",
    ),
    rule(
        "Reset attempt failed. Can not reset the device",
        r"ena " + _PCI_NETDEV + r"(?P<sub_code>Reset attempt failed)",
        _K.NIC_FAULT,
        "drivers/net/ethernet/amazon/ena/ena_netdev.c, ena_restore_device",
    ),
    rule(
        ": wd_expired: ",
        r"ena " + _PCI_NETDEV + r"(?P<sub_code>wd_expired): \d{3,12}",
        _K.NIC_FAULT,
        "drivers/net/ethernet/amazon/ena/ena_netdev.c, ena_dump_stats_to_dmesg: reset hundreds of times for a silent device; amzn-drivers#285",
    ),
    rule(
        "Failed to process command",
        _EFA + r"(?P<sub_code>Failed to process command) ",
        _K.NIC_COMMAND,
        "drivers/infiniband/hw/efa/efa_com.c: the card refused a command, such as a program's queue beyond its limit",
    ),
    rule(
        "isn't ready, abort com init",
        _EFA + r"Device (?P<sub_code>isn't ready), abort com init",
        _K.NIC_INIT,
        "drivers/infiniband/hw/efa/efa_com.c; NVSentinel nicdriver, efa_device_not_ready",
    ),
    *(
        rule(
            literal,
            _EFA + words,
            _K.NIC_FAULT,
            "drivers/infiniband/hw/efa/efa_com.c: its queue of commands is closed until the driver starts anew; NVSentinel nicdriver: REPLACE_VM",
        )
        for literal, words in (
            ("Wait for completion", r"(?P<sub_code>Wait for completion \(polling\) timeout)"),
            ("send any completion", r"(?P<sub_code>The device didn't send any completion)"),
            ("Admin queue is closed", r"(?P<sub_code>Admin queue is closed)"),
            ("Reset indication didn", r"(?P<sub_code>Reset indication didn't turn o\w+)"),
            ("ready, can't reset", r"Device (?P<sub_code>isn't ready), can't reset"),
        )
    ),
    *(
        rule(
            literal,
            _EFA + r"(?P<sub_code>" + words + ")",
            _K.NIC_HUNG,
            "drivers/infiniband/hw/efa/efa_com.c: the answer came, and its interrupt did not; or a register's read failed",
        )
        for literal, words in (
            ("completion but the driver", r"The device sent [a ]{0,2}completion but the driver"),
            *((words, words) for words in ("Reading register timed out", "Read response wrong")),
        )
    ),
    rule(
        "gve ",
        r"gve (?P<pci>" + PCI + r"): (?P<sub_code>Reset failed)! !!! DISABLING ALL QUEUES",
        _K.NIC_FAULT,
        "drivers/net/ethernet/google/gve/gve_main.c",
        needles=("DISABLING ALL QUEUES",),
    ),
    rule(
        "recoverable",
        r"(?:ice|i40e) (?P<pci>" + PCI + r")(?: (?P<netdev>" + _NAME + r"))?: .{0,60}?"
        r"(?P<sub_code>device is (?:in )?(?:non-|un)recoverable)",
        _K.NIC_FAULT,
        "drivers/net/ethernet/intel/ice/ice_main.c, i40e/i40e_main.c",
    ),
    rule(
        "recovery mode due to repeated FW resets",
        r"i40e (?P<pci>"
        + PCI
        + r"): Entering (?P<sub_code>recovery mode) due to repeated FW resets",
        _K.NIC_FAULT,
        "drivers/net/ethernet/intel/i40e/i40e_main.c",
    ),
    rule(
        "irmware recovery mode detected",
        r"(?:ice|i40e|ixgbe) (?P<pci>" + PCI + r")(?: (?P<netdev>" + _NAME + r"))?: "
        r"(?P<sub_code>Firmware recovery mode) detected",
        _K.NIC_FAULT,
        "drivers/net/ethernet/intel/ice/ice_main.c, i40e/i40e_main.c, ixgbe/ixgbe_main.c",
    ),
    rule(
        "Fan has stopped, replace the adapter",
        r"ixgbe (?P<pci>"
        + PCI
        + r")(?: (?P<netdev>"
        + _NAME
        + r"))?: (?P<sub_code>Fan has stopped)",
        _K.NIC_FAULT,
        "drivers/net/ethernet/intel/ixgbe/ixgbe_main.c",
    ),
    rule(
        "RAS error",
        r"hns3 (?P<pci>" + PCI + r"): (?P<sub_code>(?:HNS|ROCEE) Non-Fatal RAS error)",
        _K.NIC_RESET,
        "drivers/net/ethernet/hisilicon/hns3/hns3pf/hclge_err.c: the driver resets the card",
    ),
    rule(
        " Error",
        r"(?:ice|i40e|idpf) "
        + _PCI_NETDEV
        + r"(?P<sub_code>critical PE Error|HMC Error|PE Push Error)",
        _K.NIC_RESET,
        "drivers/infiniband/hw/irdma/icrdma_if.c, irdma_iidc_event_handler: it asks for a reset of the function",
        needles=("critical PE Error", "HMC Error", "PE Push Error"),
    ),
    rule(
        "on MAD QP (",
        r"infiniband (?P<device>"
        + _NAME
        + r"): (?P<sub_code>Fatal error) \(\d{1,3}\) on MAD QP \(",
        _K.NIC_WARNING,
        "drivers/infiniband/core/mad.c, qp_event_handler: no connection is made over this port any more",
    ),
    rule(
        "infiniband ",
        r"infiniband (?P<device>" + _NAME + r"): (?P<sub_code>Couldn't open port) \d{1,3}",
        _K.NIC_INIT,
        "drivers/infiniband/core/mad.c, ib_mad_init_device: no connection is made over this port",
        needles=("Couldn't open port",),
    ),
    rule(
        "to contact the device's firmware",
        r"idpf (?P<pci>"
        + PCI
        + r"): .{0,40}?(?P<sub_code>unable to contact the device's firmware)",
        _K.NIC_FAULT,
        "drivers/net/ethernet/intel/idpf/idpf_main.c, idpf_init_hard_reset: the interfaces are gone",
    ),
    rule(
        "HW reset detected",
        r"idpf (?P<pci>" + PCI + r"): (?P<sub_code>HW reset detected)",
        _K.NIC_RESET,
        "drivers/net/ethernet/intel/idpf/idpf_lib.c, idpf_service_task",
    ),
    rule(
        "hfi1_tid_timeout",
        r"hfi1 (?P<pci>" + PCI + r"): hfi1_\d{1,3}: \[QP\d{1,8}\] hfi1_(?P<sub_code>tid_timeout)",
        _K.NIC_WARNING,
        "drivers/infiniband/hw/hfi1/tid_rdma.c: a program waits for its peer's answer; linux-rdma on TID RDMA WRITE",
    ),
    rule(
        "Reset adapter",
        r"(?:ixgbe|ig[bc]) (?P<pci>"
        + PCI
        + r") (?P<netdev>"
        + _NAME
        + r"): (?P<sub_code>Reset adapter)",
        _K.NIC_RESET,
        "drivers/net/ethernet/intel/ixgbe/ixgbe_main.c, igb/igb_main.c, igc/igc_main.c",
    ),
    # --- cards that start with less than they have
    rule(
        "Entering Safe Mode",
        r"ice (?P<pci>" + PCI + r"): .{0,200}?Entering (?P<sub_code>Safe Mode)",
        _K.NIC_WARNING,
        "drivers/net/ethernet/intel/ice/ice_main.c: without its DDP package; incus-os#1305 received nothing then",
    ),
    rule(
        "oad firmware file",
        r"bnx2x?(?: " + _PCI_NETDEV + r"|: )(?P<sub_code>Can't load firmware file)",
        _K.NIC_WARNING,
        "drivers/net/ethernet/broadcom/bnx2.c, bnx2x/bnx2x_main.c: the ports stay down",
    ),
    rule(
        "FW heartbeat stalled",
        r"ionic (?P<pci>" + PCI + r"): (?P<sub_code>FW heartbeat stalled)",
        _K.NIC_HUNG,
        "drivers/net/ethernet/pensando/ionic/ionic_dev.c: reset where it does not come back",
    ),
    rule(
        "HWC: Request timed out",
        r"mana (?P<pci>" + PCI + r"): (?P<sub_code>HWC: Request timed out)",
        _K.NIC_HUNG,
        "drivers/net/ethernet/microsoft/mana/hw_channel.c: commands of the firmware",
    ),
    # --- cards that could not be started
    rule(
        "failed with error",
        r"(?P<sub_code>" + _DRIVERS + r"): probe of (?P<pci>" + PCI + r") failed with error -\d+",
        _K.NIC_INIT,
        "drivers/base/dd.c, call_driver_probe, before 6.4",
    ),
    rule(
        "failed with error",
        r"(?P<sub_code>" + _DRIVERS + r") (?P<pci>" + PCI + r"): probe with driver \S{1,32} failed "
        r"with error -\d+",
        _K.NIC_INIT,
        "drivers/base/dd.c, call_driver_probe, since 6.4",
    ),
    rule(
        "failed with error code",
        r"mlx5_core (?P<pci>" + PCI + r"): (?:probe_one:\d+:\(pid \d{1,10}\): )?"
        r"(?P<sub_code>mlx5_(?:load|init)_one) failed with error code",
        _K.NIC_INIT,
        "drivers/net/ethernet/mellanox/mlx5/core/main.c",
    ),
    rule(
        "pf_reset failed",
        r"i40e (?P<pci>[0-9a-fA-F:.]{7,16}): (?P<sub_code>In(?:i)?tial pf_reset failed)",
        _K.NIC_INIT,
        "drivers/net/ethernet/intel/i40e/i40e_main.c, i40e_probe; 'Intial' out of tree, PF_RING#493",
    ),
    rule(
        "HW Init failed",
        r"(?:ixgbe|ixgbevf|igb|igc) (?P<pci>" + PCI + r"): (?P<sub_code>HW Init failed)",
        _K.NIC_INIT,
        "drivers/net/ethernet/intel/ixgbe/ixgbe_main.c, ixgbe_probe",
    ),
    rule(
        "device init failed",
        r"efa (?P<pci>" + PCI + r"): (?P<sub_code>EFA device init failed)",
        _K.NIC_INIT,
        "drivers/infiniband/hw/efa/efa_main.c",
    ),
    rule(
        " FAIL",
        r"(?:ice|i40e|idpf) (?P<pci>"
        + PCI
        + r"): (?P<sub_code>HW runtime init FAIL|IRDMA hardware initialization FAILED)",
        _K.NIC_INIT,
        "drivers/infiniband/hw/irdma/hw.c: no RDMA on this port",
        needles=("HW runtime init FAIL", "hardware initialization FAILED"),
    ),
    *(
        rule(
            "failed with error",
            r"(?P<sub_code>irdma(?:\.\w{1,8})?)" + words,
            _K.NIC_INIT,
            "drivers/base/dd.c, call_driver_probe: irdma's devices are parts of a card (irdma/icrdma_if.c)",
        )
        for words in (
            r": probe of (?P<device>[\w-]{2,16}\.(?:roce|iwarp)\.\d{1,6}) failed with error -\d+",
            r" (?P<device>[\w-]{2,16}\.(?:roce|iwarp)\.\d{1,6}): probe with driver \S{1,32} failed with error -\d+",
        )
    ),
    # --- links
    *(
        rule(
            "Port: ",
            r"[\w-]{2,32} (?P<pci>"
            + PCI
            + r") (?P<netdev>"
            + _NAME
            + r"): Port: \d{1,3} Link "
            + way
            + r"\b",
            kind,
            "MLNX_OFED, drivers/infiniband/hw/mlx5/main.c: InfiniBand ports",
        )
        for way, kind in (("DOWN", _K.LINK_DOWN), ("ACTIVE", _K.LINK_UP))
    ),
    rule(
        "logical state changed to PORT_",
        r"hfi1 (?P<pci>" + PCI + r"): (?P<netdev>hfi1_\d{1,3}): logical state changed to PORT_DOWN",
        _K.LINK_DOWN,
        "drivers/infiniband/hw/hfi1/chip.c",
    ),
    rule(
        "logical state changed to PORT_",
        r"hfi1 (?P<pci>"
        + PCI
        + r"): (?P<netdev>hfi1_\d{1,3}): logical state changed to PORT_ACTIVE",
        _K.LINK_UP,
        "the same",
    ),
    *(
        rule(
            f"link {way}",
            r"[\w-]{2,32} " + PCI + r":? (?P<netdev>[A-Za-z][\w.@-]{0,31}): link " + way + r"\b",
            kind,
            "drivers of cxgb4, sfc, 8139too, e100: netdev_info in small letters",
        )
        for way, kind in (("down", _K.LINK_DOWN), ("up", _K.LINK_UP))
    ),
    rule(
        "]Link is ",
        r"qed\w? [^\n]{0,40}\[\w{1,40}:\d{1,6}\((?P<netdev>[\w.@-]{1,32})\)\]Link is down",
        _K.LINK_DOWN,
        "drivers/net/ethernet/qlogic/qede/qede_main.c",
    ),
    rule(
        "]Link is ",
        r"qed\w? [^\n]{0,40}\[\w{1,40}:\d{1,6}\((?P<netdev>[\w.@-]{1,32})\)\]Link is up",
        _K.LINK_UP,
        "the same",
    ),
    rule(
        "ink",
        _LINK + r"(?:DOWN|[Dd]own)\b",
        _K.LINK_DOWN,
        "drivers of mlx5, bnxt, ixgbe, i40e, ice, igb, e1000e, tg3; drivers/net/phy",
        refine=_with_device,
        needles=tuple(
            f"ink {words}" for words in ("DOWN", "Down", "down", "is DOWN", "is Down", "is down")
        ),
    ),
    rule(
        "ink",
        _LINK + r"(?:UP|[Uu]p)\b",
        _K.LINK_UP,
        "the same",
        refine=_with_device,
        needles=tuple(f"ink {words}" for words in ("UP", "Up", "up", "is UP", "is Up", "is up")),
    ),
    *(
        rule(
            literal,
            r"(?:bonding: )?[\w.-]{1,32}: (?:\(slave (?P<netdev>[\w.-]{1,32})\): )?link status "
            + way
            + r"(?:.{0,24}? for (?:active |backup )?interface (?P<device>[\w.-]{1,32}))?",
            kind,
            "drivers/net/bonding/bond_main.c; a bond may have any name (coreos/bugs#2200), and waits for a time where it is so set",
            sub_code="bond",
            needles=needles,
        )
        for literal, way, kind, needles in (
            ("link status", r"(?:definitely )?down", _K.LINK_DOWN, ("link status d",)),
            (
                "link status",
                r"(?:definitely up|up again)",
                _K.LINK_UP,
                ("link status definitely up", "link status up again"),
            ),
        )
    ),
    # --- cards that stand still
    rule(
        "NETDEV WATCHDOG",
        r"NETDEV WATCHDOG: (?:CPU: \d+: )?(?P<netdev>[\w.-]{1,32})(?: ?\([^)]{1,32}\))?: "
        r"transmit (?:queue \d+ )?timed out",
        _K.NIC_HUNG,
        "net/sched/sch_generic.c, dev_watchdog, before 6.5; before 2.6.30 without driver and queue",
        sub_code="transmit timed out",
    ),
    rule(
        "NETDEV WATCHDOG",
        _NETDEV + r"NETDEV WATCHDOG: (?:CPU: \d+: )?transmit queue \d+ timed out",
        _K.NIC_HUNG,
        "net/sched/sch_generic.c, dev_watchdog, since 6.5 and in stable kernels",
        sub_code="transmit timed out",
    ),
    rule(
        "TX timeout",
        r"(?:mlx4_en: )?" + _NETDEV + r"(?P<sub_code>TX timeout)(?: detected| on queue)",
        _K.NIC_HUNG,
        "mlx5 en_main.c and en/reporter_tx.c, mlx4 en_netdev.c, bnxt.c, gve_main.c",
    ),
    rule(
        "Tx timeout",
        _NETDEV + r"(?P<sub_code>Tx timeout)",
        _K.NIC_HUNG,
        "drivers/net/usb/r8152.c, rtl8152_tx_timeout",
    ),
    rule(
        "tx_timeout",
        r"(?:ice|i40e|iavf) (?P<pci>" + PCI + r") (?P<netdev>" + _NAME + r"): "
        r"(?P<sub_code>tx_timeout): VSI",
        _K.NIC_HUNG,
        "drivers/net/ethernet/intel/ice/ice_main.c, i40e/i40e_main.c",
    ),
    rule(
        "Unit Hang",
        r"[\w-]{2,32} " + _PCI_NETDEV + r"(?P<sub_code>Detected (?:Tx|Hardware) Unit Hang)",
        _K.NIC_HUNG,
        "drivers/net/ethernet/intel/ixgbe, igb (without the port's name), e1000e",
    ),
)

"""Messages of network cards, their links, cables and drivers."""

from typing import Final

from detectors.kernel_event import PCI, EventKind, Rule, rule

_K = EventKind

_LINK: Final = (  # driver and PCI address, the device's name, or both
    r"(?:[\w-]{2,32} (?P<pci>" + PCI + r")(?:: | ))?"
    r"(?:(?P<netdev>(?!NIC\b)[A-Za-z][\w.@-]{0,31}):? )?(?:NIC )?Link (?:is )?"
)

NIC_RULES: Final[tuple[Rule, ...]] = (
    # --- network
    rule(
        "Port module event",
        r"mlx5_core (?P<pci>"
        + PCI
        + r"): .{0,40}?Port module event(?:\[error\])?: module \d{1,3}, "
        r"(?P<sub_code>Cable unplugged|Cable error[^\n]{0,64}|[Hh]igh [Tt]emperature[^\n]{0,32})",
        _K.TRANSCEIVER,
        "drivers/net/ethernet/mellanox/mlx5/core/events.c",
    ),
    rule(
        "mlx5_core",
        r"mlx5_core (?P<pci>" + PCI + r"): .{0,80}?(?P<sub_code>[Dd]etected insufficient power"
        r"|[Hh]igh temperature)",
        _K.NIC_WARNING,
        "drivers/net/ethernet/mellanox/mlx5/core/events.c: mlx5_pcie_event, temp_warn",
    ),
    rule(
        "mlx5_core",
        r"mlx5_core (?P<pci>" + PCI + r"): .{0,80}?(?P<sub_code>Fatal error \d{1,3} detected"
        r"|device's health compromised|firmware fatal error|health recovery (?:flow aborted|failed)"
        r"|Health issue observed, [\w ,-]{1,48}(?=, severity\([0-3]\))"
        r"|synd 0x[1-9a-f]\w{0,2}: [\w ]{1,40})",
        _K.NIC_FAULT,
        "drivers/net/ethernet/mellanox/mlx5/core/health.c; severity 4 and above is no error",
    ),
    rule(
        "mlx5_core",
        r"mlx5_core (?P<pci>" + PCI + r"): (?:mlx5_cmd_out_err|mlx5_cmd_check|wait_func):\d+:"
        r"\(pid (?P<pid>\d{1,10})\): (?:cmd\[\d+\]: )?(?P<sub_code>[A-Z0-9_]{1,40})",
        _K.NIC_COMMAND,
        "drivers/net/ethernet/mellanox/mlx5/core/cmd.c; a flood of ACCESS_REG: reading a limited PF",
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
        r"bnxt_en (?P<pci>" + PCI + r")(?: (?P<netdev>[A-Za-z][\w.@-]{0,31}))?: "
        r"(?P<sub_code>TX timeout detected|(?:Fatal|Non-fatal) firmware reset event"
        r"|Detected firmware fatal condition|Firmware reset aborted)",
        _K.NIC_FAULT,
        "drivers/net/ethernet/broadcom/bnxt/bnxt.c",
    ),
    rule(
        "bnxt_en",
        r"bnxt_en (?P<pci>" + PCI + r")(?: (?P<netdev>[A-Za-z][\w.@-]{0,31}))?: "
        r"(?:Error|Resp cmpl intr err|hwrm) .{0,40}?(?:msg:? \{?|req_type )"
        r"(?P<sub_code>0x[0-9a-f]{1,4})",
        _K.NIC_COMMAND,
        "drivers/net/ethernet/broadcom/bnxt/bnxt_hwrm.c",
    ),
    rule(
        "lost tx completions",
        r"ena (?P<pci>" + PCI + r")(?: (?P<netdev>[A-Za-z][\w.@-]{0,31}))?: "
        r".{0,20}?(?P<sub_code>lost tx completions)",
        _K.NIC_FAULT,
        "drivers/net/ethernet/amazon/ena/ena_netdev.c: the card is reset",
    ),
    rule(
        "eep alive watchdog timeout",
        r"ena (?P<pci>" + PCI + r")(?: (?P<netdev>[A-Za-z][\w.@-]{0,31}))?: "
        r"(?P<sub_code>[Kk]eep alive watchdog timeout)",
        _K.NIC_FAULT,
        "drivers/net/ethernet/amazon/ena/ena_netdev.c: the card is reset",
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
    ),
    rule(
        "ink",
        _LINK + r"(?:UP|[Uu]p)\b",
        _K.LINK_UP,
        "the same",
    ),
    rule(
        "link status definitely",
        r"bond\S{0,24}: (?:\(slave (?P<netdev>[\w.-]{1,32})\): )?link status definitely down"
        r"(?: for interface (?P<device>[\w.-]{1,32}))?",
        _K.LINK_DOWN,
        "drivers/net/bonding/bond_main.c",
        sub_code="bond",
    ),
    rule(
        "NETDEV WATCHDOG",
        r"NETDEV WATCHDOG: (?:CPU: \d+: )?(?P<netdev>[\w.-]{1,32}) ?\([^)]{1,32}\): "
        r"transmit queue \d+ timed out",
        _K.NIC_FAULT,
        "net/sched/sch_generic.c",
        sub_code="transmit timed out",
    ),
)

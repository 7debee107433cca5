"""Messages of disks, their controllers, file systems and file servers."""

from typing import Final

from detectors.kernel_event import EventKind, Rule, rule

_K = EventKind


STORAGE_RULES: Final[tuple[Rule, ...]] = (
    # --- disks and file systems
    rule(
        "emounting filesystem read-only",
        r"EXT\d-fs \((?P<disk>[\w.-]{1,64})\): Remounting filesystem read-only",
        _K.FS_READ_ONLY,
        "fs/ext4/super.c",
    ),
    rule(
        "forced readonly",
        r"BTRFS info \(device (?P<disk>[\w.-]{1,64})[^)]{0,64}\): forced readonly",
        _K.FS_READ_ONLY,
        "fs/btrfs/messages.c",
    ),
    rule(
        "EXT",
        r"EXT\d-fs error \(device (?P<disk>[\w.-]{1,64})\)(?:: | in )(?P<sub_code>\w{1,48}):",
        _K.FS_ERROR,
        "fs/ext4/super.c, __ext4_error, __ext4_std_error",
    ),
    rule(
        "EXT",
        r"EXT\d-fs warning \(device (?P<disk>[\w.-]{1,64})\): ext4_end_bio:\d{1,6}: I/O error",
        _K.IO_ERROR,
        "fs/ext4/page-io.c",
        sub_code="ext4_end_bio",
    ),
    rule(
        "XFS (",
        r"XFS \((?P<disk>[\w.-]{1,64})\): .{0,80}?(?P<sub_code>[Cc]orruption|CRC error"
        r"|metadata I/O error"
        r"|[Ss]hutting down|has been shut down|[Ii]nternal error|log I/O error)",
        _K.FS_ERROR,
        "fs/xfs/xfs_error.c, xfs_fsops.c, xfs_buf.c",
    ),
    rule(
        "BTRFS",
        r"BTRFS:? (?:error|critical) \(device (?P<disk>[\w.-]{1,64})",
        _K.FS_ERROR,
        "fs/btrfs/messages.c",
    ),
    rule(
        "EXT",
        r"EXT\d-fs \((?P<disk>[\w.-]{1,64})\): (?P<sub_code>I/O error while writing superblock)",
        _K.FS_ERROR,
        "fs/ext4/super.c, ext4_commit_super",
    ),
    rule(
        "updating journal superblock",
        r"JBD2: (?P<sub_code>I/O error when updating journal superblock) for "
        r"(?P<disk>[\w.-]{1,64}?)(?:-\d+)?\.",
        _K.FS_ERROR,
        "fs/jbd2/journal.c",
    ),
    rule(
        "has encountered an uncorrectable I/O failure",
        r"Pool '(?P<disk>[^']{1,64})' has encountered an uncorrectable I/O failure",
        _K.FS_ERROR,
        "OpenZFS, module/os/linux/zfs: zfs_ereport, spa_suspend",
        sub_code="pool suspended",
    ),
    rule(
        "Aborting journal",
        r"Aborting journal on device (?P<disk>[\w.-]{1,64}?)(?:-\d+)?\.",
        _K.FS_ERROR,
        "fs/jbd2/journal.c",
        sub_code="journal aborted",
    ),
    rule(
        "nfs: server",
        r"nfs: server (?P<device>[\w.:-]{1,64}) not responding",
        _K.FS_REMOTE,
        "net/sunrpc/clnt.c",
        sub_code="not responding",
    ),
    rule(
        "ceph: ",
        r"libceph: (?P<device>(?:mon|osd|mds)\d{1,6}) .{0,80}?(?P<sub_code>session lost|down)\b",
        _K.FS_REMOTE,
        "net/ceph/mon_client.c, osdmap.c",
    ),
    rule(
        "ceph: ",
        r"ceph: (?:\[[^\]]{1,64}\]: )?(?P<device>mds\d{1,6}) (?P<sub_code>hung|reconnect denied)",
        _K.FS_REMOTE,
        "fs/ceph/mds_client.c",
    ),
    rule(
        "CIFS",
        r"CIFS: .{0,16}?(?P<device>\\\\[\w.-]{1,64}) (?P<sub_code>has not responded)",
        _K.FS_REMOTE,
        "fs/smb/client/connect.c",
    ),
    rule(
        "Lustre",
        r"Lustre(?:Error)?: .{0,120}?(?P<sub_code>Connection to (?P<device>[\w.@-]{1,64}) .{0,80}was lost"
        r"|This client was evicted)",
        _K.FS_REMOTE,
        "lustre/ptlrpc/import.c",
    ),
    rule(
        "LustreError: ",
        r"LustreError: 11-0: (?P<device>[\w.-]{1,64}?)(?:-ffff\w{0,12})?: "
        r"(?:Communicating with .{1,80}?, )?operation (?P<sub_code>\w{1,32}) .{0,90}?failed",
        _K.FS_REMOTE,
        "lustre/ptlrpc/client.c, ptlrpc_check_status",
    ),
    rule(
        "LNetError: ",
        r"LNetError: .{0,160}?(?P<sub_code>Timed out (?:tx|RDMA))",
        _K.FS_REMOTE,
        "lnet/klnds/o2iblnd/o2iblnd_cb.c",
    ),
    rule(
        "nvme",
        r"nvme (?P<disk>nvme\d{1,4}): (?:controller is down; will reset"
        r"|Removing after probe failure|Disabling device after reset failure|Device not ready"
        r"|Removing device)",
        _K.NVME_DOWN,
        "drivers/nvme/host/pci.c, core.c",
    ),
    rule(
        "nvme",
        r"nvme (?P<disk>nvme\d{1,4}): I/O .{0,120}?timeout, (?P<sub_code>[\w ]{1,24})",
        _K.NVME_TIMEOUT,
        "drivers/nvme/host/pci.c, nvme_timeout",
    ),
    rule(
        "nvme",
        r"nvme (?P<disk>nvme\d{1,4}): (?:resetting controller|restart after slot reset"
        r"|frozen state error detected, reset controller)",
        _K.NVME_RESET,
        "drivers/nvme/host/pci.c, core.c",
    ),
    rule(
        "I/O error",
        r"(?:I/O error|Buffer I/O error on dev(?:ice)?),? (?:dev )?(?P<disk>[\w.-]{1,64}),"
        r" (?:logical block|sector)",
        _K.IO_ERROR,
        "block/blk-core.c, fs/buffer.c",
    ),
    rule(
        "(sct 0x",
        r"(?P<disk>nvme\d{1,4}(?:c\d{1,4})?n\d{1,6}): .{1,80} @ LBA .{1,120}?"
        r"\((?P<sub_code>sct \w{1,6} / sc \w{1,6})\)",
        _K.IO_ERROR,
        "drivers/nvme/host/core.c, nvme_log_error",
    ),
    rule(
        " error, dev ",
        r"critical (?P<sub_code>medium|target|space allocation|nexus) error, dev (?P<disk>[\w.-]{1,64}),",
        _K.IO_ERROR,
        "block/blk-core.c",
    ),
    rule(
        "Sense Key : ",
        r"\[(?P<disk>[\w.-]{1,32})\] .{0,40}?Sense Key : (?P<sub_code>Medium Error|Hardware Error)",
        _K.IO_ERROR,
        "drivers/scsi/constants.c, scsi_print_sense",
        is_announcement=True,
    ),
    rule(
        "Disk failure on",
        r"md/\w{1,16}:\w{1,32}: Disk failure on (?P<disk>[\w.-]{1,64})",
        _K.IO_ERROR,
        "drivers/md/raid1.c, raid5.c, raid10.c",
        sub_code="raid member failed",
    ),
)

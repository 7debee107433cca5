"""Messages of disks, their controllers, file systems and file servers."""

import re
from dataclasses import replace
from typing import Final

from detectors.kernel.event import PCI, EventKind, KernelEvent, Rule, rule

_K = EventKind

# These are not disks of the node: any read of an empty floppy or CD drive fails, and the others are
# images and network block devices that programs attach and detach.
_REAL_DISK: Final = r"(?!(?:fd|sr|loop|nbd|zram)\d)(?P<disk>[\w.-]{1,64})"

# Btrfs logs a refused mount as an error. The caller of mount(2) gets that error, and nothing on the
# disk has changed. Where a tree can't be read, another error comes before "open_ctree failed".
# -2 (ENOENT): a member that no device scan has found yet; "devid ... is missing" comes with it.
_BTRFS_REFUSALS: Final = (
    r"open_ctree failed|unrecognized |unsupported |cannot disable |(?:cannot|couldn't) mount "
    r"|sectorsize \d{1,10} not (?:yet )?supported|device \S{1,128} .{0,40}belongs to fsid"
    r"|failed to read (?:the system array|chunk tree): -2\b"
)

_VOLUME: Final = re.compile(r"(?:nbd|rbd|loop|zram)\d")


def _refine_volume(event: KernelEvent, _match: re.Match[str]) -> KernelEvent:
    """Return a file system's event, of another kind where it is on a program's volume or image."""
    is_volume = _VOLUME.match(event.device) is not None
    return replace(event, kind=EventKind.FS_VOLUME) if is_volume else event


def _refine_members(event: KernelEvent, match: re.Match[str]) -> KernelEvent | None:
    """Return an array's event, or None where it has each of its members."""
    return event if int(match["active"]) < int(match["all"]) else None


STORAGE_RULES: Final[tuple[Rule, ...]] = (
    # --- disks and file systems
    rule(
        "emounting filesystem read-only",
        r"EXT\d-fs \((?P<disk>[\w.-]{1,64})\): Remounting filesystem read-only",
        _K.FS_READ_ONLY,
        "fs/ext4/super.c",
        refine=_refine_volume,
    ),
    rule(
        "forced readonly",
        r"BTRFS info \(device (?P<disk>[\w.-]{1,64})[^)]{0,64}\): forced readonly",
        _K.FS_READ_ONLY,
        "fs/btrfs/messages.c",
        refine=_refine_volume,
    ),
    rule(
        "EXT",
        r"EXT\d-fs error \(device (?P<disk>[\w.-]{1,64})\)(?:: | in )(?P<sub_code>\w{1,48}):",
        _K.FS_ERROR,
        "fs/ext4/super.c, __ext4_error, __ext4_std_error",
        needles=("-fs error",),
        refine=_refine_volume,
    ),
    rule(
        "EXT",
        r"EXT\d-fs warning \(device (?P<disk>[\w.-]{1,64})\): ext4_end_bio:\d{1,6}: I/O error",
        _K.IO_ERROR,
        "fs/ext4/page-io.c",
        sub_code="ext4_end_bio",
        needles=("ext4_end_bio",),
    ),
    rule(
        "XFS (",
        r"XFS \((?P<disk>[\w.-]{1,64})\): (?!User initiated).{0,200}?(?P<sub_code>[Cc]orruption"
        r"|xfs_log_force: error -5"
        r"|CRC error|[Mm]etadata I/O [Ee]rror|[Ll]og I/O [Ee]rror|xfs_(?:do_)?force_shutdown"
        r"|[Ss]hutting down|has been shut down|[Ii]nternal error)",
        _K.FS_ERROR,
        "fs/xfs/xfs_error.c, xfs_fsops.c, xfs_buf.c",
        refine=_refine_volume,
    ),
    rule(
        "XFS: Internal error ",
        r"XFS: (?P<sub_code>Internal error XFS_WANT_CORRUPTED_\w{1,16}) at line",
        _K.FS_ERROR,
        "fs/xfs/xfs_error.c before 3.1: names no device",
    ),
    rule(
        "BTRFS",
        r"BTRFS:? (?:error|critical) \(device (?P<disk>[\w.-]{1,64})[^)]{0,64}\): "
        r"devid \d{1,10} uuid [\w-]{1,64} is missing",
        _K.RAID_DEGRADED,
        "fs/btrfs/volumes.c: the mount is refused, or goes on with -o degraded",
        sub_code="member missing",
    ),
    rule(
        "BTRFS",
        r"BTRFS:? (?:error|critical) \(device (?P<disk>[\w.-]{1,64})[^)]{0,64}\)"
        r"(?!: (?:" + _BTRFS_REFUSALS + "))",
        _K.FS_ERROR,
        "fs/btrfs/messages.c",
        refine=_refine_volume,
    ),
    rule(
        "EXT",
        r"EXT\d-fs \((?P<disk>[\w.-]{1,64})\): (?P<sub_code>I/O error while writing superblock)",
        _K.FS_ERROR,
        "fs/ext4/super.c, ext4_commit_super",
        needles=("I/O error while writing superblock",),
        refine=_refine_volume,
    ),
    rule(
        "EXT",
        r"EXT\d-fs(?: warning)? \((?:device )?(?P<disk>[\w.-]{1,64})\): "
        r"(?:\w{1,32}:\d{1,6}: )?(?P<sub_code>error count since last fsck(?=: [1-9])|mounting fs with errors)",
        _K.FS_UNCHECKED,
        "fs/ext4/super.c, print_daily_error_info, ext4_setup_super",
        needles=("error count since last fsck: ", "mounting fs with errors"),
    ),
    rule(
        "JBD2: ",
        r"JBD2: (?P<sub_code>Invalid checksum recovering|recovery failed|IO error -?\d{1,5} recovering)",
        _K.FS_ERROR,
        "fs/jbd2/recovery.c, journal.c: what was in the journal is lost",
        needles=("Invalid checksum recovering", "recovery failed", " recovering"),
    ),
    rule(
        "updating journal superblock",
        r"JBD2: (?P<sub_code>I/O error when updating journal superblock) for "
        r"(?P<disk>[\w.-]{1,64}?)(?:-\d+)?\.",
        _K.FS_ERROR,
        "fs/jbd2/journal.c",
        refine=_refine_volume,
    ),
    rule(
        "has encountered an uncorrectable I/O failure",
        r"(?:SPLError: \d{1,10}:0:\([\w.:-]{1,64}\(\)\) )?(?:WARNING: )?Pool '(?P<disk>[^']{1,64})' has encountered an uncorrectable I/O failure",
        _K.FS_ERROR,
        "OpenZFS, module/os/linux/zfs: zfs_ereport, spa_suspend; behind SPL's prefix before 0.6.4, spl#417",
        sub_code="pool suspended",
    ),
    rule(
        "Aborting journal",
        r"Aborting journal on device (?P<disk>[\w.-]{1,64}?)(?:-\d+)?\.",
        _K.FS_ERROR,
        "fs/jbd2/journal.c",
        sub_code="journal aborted",
        refine=_refine_volume,
    ),
    rule(
        ": server ",
        r"(?:nfs|lockd|rpcbind|RPC): server (?P<device>[\w.:-]{1,64}) not responding",
        _K.FS_REMOTE,
        "net/sunrpc/clnt.c",
        sub_code="not responding",
    ),
    *(
        rule(
            words,
            r"(?:NFS: )?nfs4_\w{1,40}:? (?P<sub_code>" + words + ")",
            _K.FS_REMOTE,
            "fs/nfs/nfs4state.c: after a server's restart a program lost its lock or its open file; 'NFS: ' since 3.x",
        )
        for words in ("Lock reclaim failed", "unhandled error")
    ),
    rule(
        "bad sequence-id error",
        r"NFS: v4 server (?P<device>[\w.:-]{1,64}) {1,2}returned a (?P<sub_code>bad sequence-id) error",
        _K.FS_REMOTE,
        "fs/nfs/nfs4proc.c",
    ),
    rule(
        "NFS: ",
        r"NFS: (?P<sub_code>state manager): .{1,64}? failed on NFSv4(?:\.\d)? server "
        r"(?P<device>[\w.:-]{1,64}) with error",
        _K.FS_REMOTE,
        "fs/nfs/nfs4state.c, nfs4_state_manager",
    ),
    rule(
        "NFS: ",
        r"NFS: server (?P<device>[\w.:-]{1,64}) error: (?P<sub_code>fileid changed)",
        _K.FS_REMOTE,
        "fs/nfs/inode.c: the server gave another file for the same handle",
    ),
    rule(
        "lockd: ",
        r"lockd: (?P<sub_code>failed to reclaim lock) for pid (?P<pid>\d{1,10})",
        _K.FS_REMOTE,
        "fs/lockd/clntproc.c",
    ),
    rule(
        "libceph",
        r"libceph(?: \([0-9a-f-]{1,64} e\d{1,10}\))?: (?P<device>(?:mon|osd|mds)\d{1,6})"
        r"(?: .{0,80}?| )(?P<sub_code>down|connect error|wrong peer"
        r"|socket error on (?:read|write)|feature set mismatch|bad crc)\b",
        _K.FS_REMOTE,
        "net/ceph/osdmap.c, messenger.c; with the cluster and its epoch since 6.6",
    ),
    rule(
        "session lost, hunting for new mon",
        r"libceph(?: \([0-9a-f-]{1,64} e\d{1,10}\))?: (?P<device>mon\d{1,6}) .{0,80}?session lost, hunting for new mon",
        _K.FS_MONITOR,
        "net/ceph/mon_client.c, mon_fault: one is no fault, the client takes another monitor",
    ),
    rule(
        "libceph",
        r"libceph: (?P<device>(?:mon|osd|mds)\d{1,6}) .{0,80}?(?P<sub_code>socket closed) "
        r"\(con state (?!OPEN\))\w{1,32}\)",
        _K.FS_REMOTE,
        "net/ceph/messenger.c: no new connection comes up; one that was OPEN and idle is closed without harm",
    ),
    rule(
        "ceph: ",
        r"ceph: (?:\[[^\]]{1,64}\]: )?(?P<device>mds\d{1,6}) (?P<sub_code>closed our session|caps stale"
        r"|caps went stale|session blocklisted|rejected session)",
        _K.FS_REMOTE,
        "fs/ceph/mds_client.c: the server took back what this node may keep of its files",
    ),
    rule(
        "ceph: ",
        r"ceph: (?:\[[^\]]{1,64}\]: )? ?(?P<sub_code>dropping dirty\S{0,32}) ",
        _K.FS_REMOTE,
        "fs/ceph/mds_client.c, remove_session_caps_cb: data that was not written back is lost",
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
        r"Lustre(?:Error)?: .{0,120}?Connection to (?P<device>[\w.@-]{1,64}) .{0,80}(?P<sub_code>was lost)",
        _K.FS_REMOTE,
        "lustre/ptlrpc/import.c",
    ),
    rule(
        "Lustre",
        r"Lustre(?:Error)?: .{0,120}?(?P<sub_code>This client was evicted) by (?P<device>[\w.-]{1,64})",
        _K.FS_REMOTE,
        "lustre/ptlrpc/import.c",
    ),
    rule(
        "Lustre",
        r"Lustre(?:Error)?: .{0,120}?(?P<sub_code>This client was evicted)",
        _K.FS_REMOTE,
        "lustre/ptlrpc/import.c",
    ),
    rule(
        "Lustre",
        r"Lustre(?:Error)?: .{0,16}\(client\.c:\d{1,6}:ptlrpc_expire_one_request\(\)\) @@@ Request sent "
        r"has (?P<sub_code>timed out for (?:slow reply|sent delay)|failed due to network error)"
        r"(?:.{0,160}?->(?P<device>[\w.-]{1,64})@)?",
        _K.FS_REMOTE,
        "lustre/ptlrpc/client.c, ptlrpc_expire_one_request",
    ),
    rule(
        "Lustre",
        r"LustreError: (?:11-0: )?(?P<device>[\w.-]{1,64}?)(?:-ffff\w{0,12})?: "
        r"(?:Communicating with .{1,80}?, )?operation (?P<sub_code>\w{1,32}) .{0,90}?failed",
        _K.FS_REMOTE,
        "lustre/ptlrpc/client.c, ptlrpc_check_status; without '11-0: ' since 2.16",
    ),
    rule(
        "Lustre",
        r"LustreError: .{0,16}(?P<device>MGC[\w.@-]{1,48}): Conf\w{1,12} from log .{1,64}? "
        r"(?P<sub_code>failed from MGS)",
        _K.FS_REMOTE,
        "lustre/mgc/mgc_request.c, lustre_process_log: no mount without the server's log of settings",
    ),
    rule(
        "Lustre",
        r"LustreError: .{0,120}?(?P<sub_code>Unable to mount) ",
        _K.FS_REMOTE,
        "lustre/llite/super25.c, lustre_fill_super",
    ),
    rule(
        "starting up LNI",
        r"LNetError: .{0,40}?Error -\d{1,4} (?P<sub_code>starting up LNI) (?P<device>\w{1,32})",
        _K.FS_REMOTE,
        "lnet/lnet/api-ni.c: this network of Lustre does not work on this node",
    ),
    rule(
        "LNet",
        r"LNet(?:Error)?: .{0,90}?(?P<sub_code>Timed out (?:tx|RDMA|for RDMA connect request))"
        r"(?:(?: for| with) (?P<device>[\w.:-]{1,64}@\w{1,16}))?",
        _K.FS_REMOTE,
        "lnet/klnds/o2iblnd/o2iblnd_cb.c",
    ),
    rule(
        "LNet",
        r"LNet(?:Error)?: .{0,90}?(?:A connection with \d{1,10}-(?P<device>[\w.:-]{1,64}@\w{1,16}) "
        r".{0,60}?)(?P<sub_code>timed out); the network or node may be down",
        _K.FS_REMOTE,
        "lnet/klnds/socklnd/socklnd_cb.c",
    ),
    rule(
        "beegfs: ",
        r"beegfs: .{1,16}\(\d{1,10}\): .{1,64}?: (?P<sub_code>Receive timed out|Receive failed"
        r"|Unable to connect|Communication (?:error|timeout)|Connect failed on all available routes"
        r"|Failed to send message|Peer reported indirect communication error|Retrying communication)(?: from| to| with node| in \w{1,16} stage)?(?: server)?[:.]? ?"
        r"(?:Node: )?(?P<device>[\w.-]{1,64})?",
        _K.FS_REMOTE,
        "BeeGFS client_module: Logger.c, MessagingTk.c, FhgfsOpsCommKit.c, NodeConnPool.c",
    ),
    rule(
        "beegfs: ",
        r"beegfs: .{1,16}\(\d{1,10}\): .{1,64}?: (?P<sub_code>(?:Storage target|Metadata node) state sync failed"
        r"|Couldn't find any usable NIC|Node registration failed|Unable to register at management daemon"
        r"|Waiting for management server initialization timed out)",
        _K.FS_REMOTE,
        "BeeGFS client_module at 87d28c1a: InternodeSyncer.c, App.c; 'Waiting for beegfs-mgmtd' is printed at each start",
    ),
    rule(
        "wekafs",
        r"wekafs(?:io|gw)\b.{0,80}?(?P<sub_code>(?:ALL )?FEs? (?:was |were )?down)\b",
        _K.FS_REMOTE,
        "a node check of AMD's for Instinct clusters, 2026: the client's frontends don't run",
    ),
    rule(
        "GPFS Deadman Switch",
        r"GPFS (?P<sub_code>Deadman Switch) timer .{0,40}?has expired",
        _K.FS_REMOTE,
        "IBM Storage Scale, problem determination: requests to disks did not end in time",
    ),
    rule(
        "nvme",
        r"nvme (?P<disk>nvme\d{1,4}): (?:Removing after probe failure"
        r"|Disabling device after reset failure|Device not ready|Removing device)",
        _K.NVME_DOWN,
        "drivers/nvme/host/pci.c, core.c",
        needles=(
            *("Removing after probe failure", "Disabling device after reset", "Device not ready"),
            "Removing device",
        ),
    ),
    rule(
        "nvme",
        r"nvme (?P<disk>nvme\d{1,4}): (?:\d{1,5}/){2}\d{1,5} (?:default/read|read/write)/(?P<sub_code>poll queues)",
        _K.DEVICE_RECOVERED,
        "drivers/nvme/host/pci.c since 5.0: printed at the end of each start; one without a failure before is no event (matcher.py)",
        needles=("/poll queues",),
    ),
    rule(
        "nvme",
        r"nvme (?P<disk>nvme\d{1,4}): I/O .{0,120}?timeout, (?P<sub_code>[\w ]{1,24})",
        _K.NVME_TIMEOUT,
        "drivers/nvme/host/pci.c, nvme_timeout",
        needles=("timeout, ",),
    ),
    rule(
        "nvme",
        r"nvme (?P<disk>nvme\d{1,4}): (?:controller is down; will reset|resetting controller"
        r"|restart after slot reset"
        r"|frozen state error detected, reset controller)",
        _K.NVME_RESET,
        "drivers/nvme/host/pci.c, core.c",
        needles=(
            *("controller is down; will reset", "resetting controller", "restart after slot reset"),
            "frozen state error detected",
        ),
    ),
    rule(
        "I/O error",
        r"(?:I/O error|Buffer I/O error on dev(?:ice)?),? (?:dev )?" + _REAL_DISK + ","
        r" (?:logical block|sector)",
        _K.IO_ERROR,
        "block/blk-core.c, fs/buffer.c",
    ),
    rule(
        "attempt to access beyond end of device",
        r"(?:[^:]{1,32}(?::[^:\s]{1,16})?: )?(?P<sub_code>attempt to access beyond end of device)"
        r"(?!\s{1,32}(?:loop|nbd|zram|fd|sr)\d)(?:\s{1,32}(?P<disk>[\w.-]{1,64}): rw=)?",
        _K.IO_ERROR,
        "block/blk-core.c, bio_check_eod: the file system is larger than its disk, or is damaged",
    ),
    rule(
        "rejecting I/O to ",
        r"(?P<disk>sd [\d:]{1,32}): (?:\[\w{1,16}\] )?(?P<sub_code>rejecting I/O) to (?:offline|dead) device",
        _K.IO_ERROR,
        "drivers/scsi/scsi_lib.c, scsi_device_state_check",
    ),
    rule(
        "failed command: ",
        r"(?P<disk>ata\d{1,3}\.\d\d): failed command: (?P<sub_code>(?:READ|WRITE|FLUSH)[A-Z ]{0,24})",
        _K.IO_ERROR,
        "drivers/ata/libata-eh.c, ata_eh_link_report: what reads and writes; a drive's refusal of other commands is no fault",
    ),
    rule(
        "failed",
        r"(?P<disk>ata\d{1,3}): (?P<sub_code>COMRESET failed|SRST failed|reset failed, giving up)",
        _K.IO_ERROR,
        "drivers/ata/libata-sata.c, sata_link_hardreset; libata-sff.c; libata-eh.c, ata_eh_reset",
        needles=("COMRESET failed", "SRST failed", "reset failed, giving up"),
    ),
    *(
        rule(
            f": {words}",
            rf"(?P<disk>ata\d{{1,3}}\.\d\d): (?P<sub_code>{words})\s?$",
            _K.IO_ERROR,
            "drivers/ata/libata-core.c, ata_dev_disable: the disk is given up; with 'device' since 5.17",
        )
        for words in ("disabled", "disable device")
    ),
    rule(
        "rbd: rbd",
        r"rbd: (?P<disk>rbd\d{1,4}): (?:write|read|discard) .{1,80}? (?P<sub_code>result -\d{1,4})",
        _K.FS_REMOTE,
        "drivers/block/rbd.c: a block device of Ceph",
    ),
    rule(
        "(sct 0x",
        r"(?P<disk>nvme\d{1,4}(?:c\d{1,4})?n\d{1,6}): .{1,80} @ LBA .{1,120}?"
        r"\((?P<sub_code>sct 0x2 / sc 0x81)\)",
        _K.MEDIUM_ERROR,
        "drivers/nvme/host/core.c, nvme_log_error; NVM Express: 2/81h is an unrecovered read error",
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
        r"(?:[\w-]{1,32}: )?critical (?P<sub_code>medium) error, dev " + _REAL_DISK + ",",
        _K.MEDIUM_ERROR,
        "block/blk-core.c",
    ),
    rule(
        " error, dev ",
        r"critical (?P<sub_code>target|space allocation|nexus) error, dev " + _REAL_DISK + ",",
        _K.IO_ERROR,
        "block/blk-core.c",
    ),
    rule(
        " error, dev ",
        r"(?P<sub_code>timeout|device offline|protection|recoverable transport) error, dev "
        + _REAL_DISK
        + ",",
        _K.IO_ERROR,
        "block/blk-core.c, blk_errors; 'operation not supported' is a refused discard and no fault",
    ),
    rule(
        "Sense Key : ",
        r"(?:sd [\d:]{1,32}: )?\["
        + _REAL_DISK
        + r"\] .{0,40}?Sense Key : (?P<sub_code>Medium Error)",
        _K.MEDIUM_ERROR,
        "drivers/scsi/constants.c, scsi_print_sense",
        is_announcement=True,
    ),
    rule(
        "Sense Key : ",
        r"(?:sd [\d:]{1,32}: )?\[" + _REAL_DISK + r"\] .{0,40}?Sense Key : "
        r"(?P<sub_code>Hardware Error)",
        _K.IO_ERROR,
        "drivers/scsi/constants.c, scsi_print_sense",
        is_announcement=True,
    ),
    rule(
        "Disk failure on",
        r"md/(?:raid0|linear):?(?P<disk>[\w-]{1,32}): (?P<sub_code>Disk failure) on [\w.-]{1,64} "
        r"detected, failing array",
        _K.STORAGE_FAULT,
        "drivers/md/raid0.c, md-linear.c since 6.1: no array without each of its members",
    ),
    rule(
        "unrecoverable I/O read error",
        r"md/raid\d{0,2}:(?P<disk>[\w-]{1,32}): [\w.-]{1,64}: (?P<sub_code>unrecoverable I/O read error)",
        _K.IO_ERROR,
        "drivers/md/raid1.c, raid10.c: no member could read it",
    ),
    rule(
        "Disk failure on",
        r"md/\w{1,16}:[\w-]{1,32}: Disk failure on (?P<disk>[\w.-]{1,64})",
        _K.RAID_DEGRADED,
        "drivers/md/raid1.c, raid5.c, raid10.c",
        sub_code="raid member failed",
    ),
    rule(
        "md/raid",
        r"md/raid\d{0,2}:(?P<disk>[\w-]{1,32}): (?:raid level \d{1,2} )?active with (?P<active>\d{1,4}) out of "
        r"(?P<all>\d{1,4}) (?:mirrors|devices)",
        _K.RAID_DEGRADED,
        "drivers/md/raid1.c, raid5.c, raid10.c, at the array's start",
        sub_code="member missing",
        refine=_refine_members,
    ),
    rule(
        "md/raid",
        r"md/raid\d{0,2}:(?P<disk>[\w-]{1,32}): (?P<sub_code>Cannot continue operation"
        r"|not enough operational (?:devices|mirrors)|cannot start dirty degraded array)",
        _K.STORAGE_FAULT,
        "drivers/md/raid5.c, raid10.c",
    ),
    # --- several paths to a disk
    rule(
        "available path - failing I/O",
        r"block (?P<disk>[\w.-]{1,64}): no available path - failing I/O",
        _K.NO_PATH,
        "drivers/nvme/host/multipath.c; after 'Removing ctrl' it is only that (matcher.py)",
    ),
    rule(
        "usable path - requeuing I/O",
        r"block (?P<disk>[\w.-]{1,64}): no usable path - requeuing I/O",
        _K.PATH_LOST,
        "drivers/nvme/host/multipath.c: requests wait",
        sub_code="requests wait",
    ),
    rule(
        "device-mapper: multipath",
        r"device-mapper: multipath: (?P<disk>[\d:]{1,16}): Failing path (?P<sub_code>[\w:.-]{1,32}?)\.?$",
        _K.PATH_LOST,
        "drivers/md/dm-mpath.c since 5.10",
    ),
    rule(
        "device-mapper: multipath",
        r"device-mapper: multipath: Failing path (?P<sub_code>[\w:.-]{1,32}?)\.?$",
        _K.PATH_LOST,
        "drivers/md/dm-mpath.c before 5.10",
    ),
    rule(
        "device-mapper: multipath",
        r"device-mapper: multipath: queue_if_no_path timeout on (?P<disk>[\w.:-]{1,64}), failing",
        _K.NO_PATH,
        "drivers/md/dm-mpath.c",
    ),
    # --- disks that could not be started
    rule(
        "failed with error",
        r"(?P<sub_code>nvme): probe of (?P<pci>" + PCI + r") failed with error -\d+",
        _K.NVME_DOWN,
        "drivers/base/dd.c, call_driver_probe, before 6.4",
    ),
    rule(
        "failed with error",
        r"(?P<sub_code>nvme) (?P<pci>" + PCI + r"): probe with driver nvme failed with error -\d+",
        _K.NVME_DOWN,
        "drivers/base/dd.c, call_driver_probe, since 6.4",
    ),
)

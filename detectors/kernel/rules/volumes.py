"""Messages of volume managers, of file systems that several nodes mount, and of rarer file systems."""

from typing import Final

from detectors.kernel.event import EventKind, Rule, rule

_K = EventKind

_DM: Final = r"device-mapper: (?:thin|cache|era|integrity|vdo\S{0,16}): (?:(?P<disk>\d{1,4}:\d{1,7}|dm-\d{1,4}): )?"

VOLUME_RULES: Final[tuple[Rule, ...]] = (
    # --- device-mapper's targets
    rule(
        "device-mapper: ",
        _DM + r"(?P<sub_code>switching (?:pool|cache) to (?:read-only|fail) mode"
        r"|failed to abort metadata transaction|failed to switch to read-only mode)",
        _K.STORAGE_FAULT,
        "drivers/md/dm-thin.c, set_pool_mode, abort_transaction; dm-cache-target.c: the volumes take no writes any more",
        needles=("to read-only mode", "to fail mode", "failed to abort metadata"),
    ),
    rule(
        "out-of-data-space",
        _DM + r"switching pool to (?P<sub_code>out-of-data-space)",
        _K.LIMIT_REACHED,
        "drivers/md/dm-thin.c, set_pool_mode: the pool is full; writes wait, and fail after a minute",
    ),
    rule(
        "device-mapper: ",
        _DM
        + r"(?P<sub_code>metadata operation '\w{1,48}' failed|aborting current metadata transaction"
        r"|Checksum failed at sector)",
        _K.IO_ERROR,
        "drivers/md/dm-thin.c, metadata_operation_failed; dm-integrity.c",
        needles=("metadata operation", "aborting current metadata", "Checksum failed at sector"),
    ),
    # --- bcache
    rule(
        "bcache: ",
        r"bcache: bch_cache_set_error\(\) .{0,200}?(?P<sub_code>disabling caching)",
        _K.STORAGE_FAULT,
        "drivers/md/bcache/super.c, bch_cache_set_error: its volumes stop, or lose what was not written back",
        needles=("disabling caching",),
    ),
    rule(
        "bcache: ",
        r"bcache: bch_count_(?:backing_)?io_errors\(\) (?P<disk>[\w.-]{1,64}): "
        r"(?P<sub_code>IO error on [\w ]{1,48}|IO error on backing device)",
        _K.IO_ERROR,
        "drivers/md/bcache/io.c: 'Read-ahead I/O failed' is ignored",
        needles=("IO error on ",),
    ),
    # --- file systems that several nodes mount
    rule(
        "ithdraw",
        r"(?:gfs2|GFS2): fsid=(?P<disk>[\w:.-]{1,64}): .{0,80}?(?P<sub_code>about to withdraw this file system"
        r"|[Ww]ithdrawing from cluster(?! at user)|File system withdrawn)",
        _K.FS_ERROR,
        "fs/gfs2/util.c, gfs2_withdraw: no access from this node until it is mounted anew",
        needles=("about to withdraw", "ithdrawing from cluster", "File system withdrawn"),
    ),
    rule(
        "is very sorry to be fencing this system",
        r"(?:o2quo: )?(?:\*\*\* )?(?P<sub_code>ocfs2 is very sorry to be fencing)",
        _K.PANIC,
        "fs/ocfs2/cluster/quorum.c, o2quo_fence_self: the node restarts at once",
    ),
    rule(
        "wekafs",
        r"wekafs(?:io|gw)?: .{0,120}?(?P<sub_code>poison file|Truncated dirty-pages|total-sync-errs)",
        _K.FS_REMOTE,
        "lines of two operators' notes, 2026: data that was not written back is given up",
    ),
    # --- rarer file systems
    rule(
        "Stopped filesystem due to reason",
        r"F2FS-fs \((?P<disk>[\w.-]{1,64})\): (?P<sub_code>Stopped filesystem) due to reason: [1-9]",
        _K.FS_ERROR,
        "fs/f2fs/super.c, f2fs_handle_critical_error: 0 is a shutdown that was asked for",
    ),
    rule(
        "emergency read only",
        r"bcachefs \((?P<disk>[\w.-]{1,64})\): .{0,80}?(?P<sub_code>emergency read only)(?! due to ioctl)",
        _K.FS_READ_ONLY,
        "fs/bcachefs/error.c, bch2_inconsistent_error",
    ),
    # --- NFS over RDMA
    rule(
        "rpcrdma: ",
        r"rpcrdma: (?P<sub_code>(?:Recv|Send|FastReg|LocalInv): [\w -]{4,40}) \(\d{1,3}/0x[0-9a-f]{1,4}\)",
        _K.FS_REMOTE,
        "net/sunrpc/xprtrdma/verbs.c, frwr_ops.c before 4.20: none of flushed requests; zfs#6795",
    ),
)

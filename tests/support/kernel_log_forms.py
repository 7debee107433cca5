"""Lines of the kernel's log as its source prints them, each with the event that it is."""

from detectors.kernel.event import EventKind

FORMS = [
    # text, kind, code, sub-code, device, pid, process
    *(
        (text, (kind, None, sub_code, device, None, ""))
        for text, kind, sub_code, device in (
            (
                "cxi_ss1 0000:41:00.0: cxi0[hsn0]: C_EC_UNCOR_NS: C1_PCT error: tct_cam_ucor (42) ",
                EventKind.NIC_FAULT,
                "tct_cam_ucor",
                "0000:41:00.0",
            ),
            (
                "cxi_core 0000:c0:00.0: cxi2[hsn2]: C_EC_UNCOR_NS: C_IXE error: port_dfa_mismatch (37) ",
                EventKind.NIC_WARNING,
                "port_dfa_mismatch",
                "0000:c0:00.0",
            ),
            (
                "cxi_core 0000:c5:00.0: cxi0[] init_hw failed: -12",
                EventKind.NIC_INIT,
                "init_hw failed",
                "0000:c5:00.0",
            ),
            (
                "cxi_core 0000:c3:00.0: cxi3[hsn3] CXI_EVENT_LINK_DOWN",
                EventKind.LINK_DOWN,
                "",
                "hsn3",
            ),
            (
                "cxi_ss1 0000:c3:00.0: cxi3[hsn3] (sbl): 0: serdes fw corruption alert",
                EventKind.NIC_FAULT,
                "serdes fw corruption",
                "0000:c3:00.0",
            ),
            (
                "cxi_ss1 0000:c3:00.0: cxi3[hsn3] uC: QSFP_EPO_TEMPERATURE",
                EventKind.TRANSCEIVER_HOT,
                "QSFP_EPO_TEMPERATURE",
                "0000:c3:00.0",
            ),
            (
                "habanalabs: Failed to initialize accel2. Device 0000:1a:00.0 is NOT usable!",
                EventKind.GPU_INIT,
                "Failed to initialize",
                "0000:1a:00.0",
            ),
            (
                "habanalabs hl5: 0000:4d:00.0 Consecutive fatal errors, stopping hard reset",
                EventKind.GPU_RESET_FAILED,
                "Consecutive fatal errors",
                "hl5",
            ),
            (
                "accel accel5: 0000:4d:00.0 Failed to reset! Device is NOT usable",
                EventKind.GPU_RESET_FAILED,
                "Failed to reset",
                "accel5",
            ),
            (
                "habanalabs hl5: EQ heartbeat event was not received!",
                EventKind.GPU_HUNG,
                "EQ heartbeat",
                "hl5",
            ),
            (
                "amdgpu 0000:9c:00.0: amdgpu: socket: 1, aid: 0, hbm: 1, fw_status: 0x2, memory training failed",
                EventKind.GPU_INIT,
                "memory training failed",
                "0000:9c:00.0",
            ),
            (
                "amdgpu 0000:9c:00.0: amdgpu: socket: 2, aid: 0, xgmi link training failed",
                EventKind.GPU_INIT,
                "xgmi link training failed",
                "0000:9c:00.0",
            ),
            (
                "aacraid: SCSI bus appears hung",
                EventKind.STORAGE_FAULT,
                "SCSI bus appears hung",
                "",
            ),
            (
                "sd 1:0:0:0: WARNING: (0x06:0x002C): Command (0x28) timed out, resetting card.",
                EventKind.IO_ERROR,
                "resetting card",
                "sd 1:0:0:0",
            ),
            (
                "3w-sas: scsi0: WARNING: (0x06:0x0037): Character ioctl (0x1) timed out, resetting card.",
                EventKind.IO_ERROR,
                "resetting card",
                "3w-sas: scsi0",
            ),
            (
                "3w-9xxx: scsi0: ERROR: (0x06:0x002B): Controller reset failed during scsi host reset.",
                EventKind.STORAGE_FAULT,
                "Controller reset failed",
                "3w-9xxx: scsi0",
            ),
            (
                "arcmsr0: abort device command of scsi id = 0 lun = 1",
                EventKind.IO_ERROR,
                "abort device command",
                "arcmsr0",
            ),
            (
                "arcmsr0: waiting for hw bus reset return, RETRY TERMINATED!!",
                EventKind.STORAGE_FAULT,
                "RETRY TERMINATED",
                "arcmsr0",
            ),
            (
                "hpsa 0000:01:00.7: board not ready, timed out.",
                EventKind.IO_ERROR,
                "board not ready",
                "0000:01:00.7",
            ),
            (
                "megaraid_sas: probe of 0000:03:00.0 failed with error -22",
                EventKind.STORAGE_FAULT,
                "megaraid_sas",
                "0000:03:00.0",
            ),
            (
                "mpt3sas 0000:03:00.0: probe with driver mpt3sas failed with error -12",
                EventKind.STORAGE_FAULT,
                "mpt3sas",
                "0000:03:00.0",
            ),
            (
                "sd 13:0:0:0: Device offlined - not ready after error recovery",
                EventKind.IO_ERROR,
                "Device offlined",
                "sd 13:0:0:0",
            ),
            (
                "connection1:0: detected conn error (1022)",
                EventKind.PATH_LOST,
                "1022",
                "connection1:0",
            ),
            (
                " session3: session recovery timed out after 3 secs",
                EventKind.PATH_LOST,
                "session recovery timed out",
                "session3",
            ),
            (
                "x86/amd: Previous system reset reason [0x08000800]: an uncorrected error caused a data fabric sync flood event",
                EventKind.MACHINE_CHECK_OLD,
                "data fabric sync flood",
                "",
            ),
            (
                "x86/amd: Previous system reset reason [0x00000001]: thermal pin BP_THERMTRIP_L was tripped",
                EventKind.MACHINE_CHECK_OLD,
                "BP_THERMTRIP_L",
                "",
            ),
            (
                "cxi_core 0000:c1:00.0: cxi0[]: uC not detected: -19",
                EventKind.NIC_WARNING,
                "uC not detected",
                "0000:c1:00.0",
            ),
            (
                "cxi_ss1: probe of 0000:c1:00.0 failed with error -19",
                EventKind.NIC_INIT,
                "cxi_ss1",
                "0000:c1:00.0",
            ),
            (
                "cxi_core 0000:c1:00.0: cxi0[hsn0]: HSN cable is not plugged",
                EventKind.TRANSCEIVER,
                "HSN cable is not plugged",
                "0000:c1:00.0",
            ),
            (
                "device-mapper: thin: 253:5: failed to abort metadata transaction",
                EventKind.STORAGE_FAULT,
                "failed to abort metadata transaction",
                "253:5",
            ),
            (
                "device-mapper: thin: 253:5: switching pool to read-only mode",
                EventKind.STORAGE_FAULT,
                "switching pool to read-only mode",
                "253:5",
            ),
            (
                "device-mapper: cache: 253:7: switching cache to fail mode",
                EventKind.STORAGE_FAULT,
                "switching cache to fail mode",
                "253:7",
            ),
            (
                "device-mapper: thin: 252:4: switching pool to out-of-data-space (error IO) mode",
                EventKind.LIMIT_REACHED,
                "out-of-data-space",
                "252:4",
            ),
            (
                "device-mapper: thin: 253:1: metadata operation 'dm_pool_alloc_data_block' failed: error = -5",
                EventKind.IO_ERROR,
                "metadata operation 'dm_pool_alloc_data_block' failed",
                "253:1",
            ),
            (
                "bcache: bch_cache_set_error() error on 521f7664-690d-4680-9b0d-1299fcee4321: nvme0n1: too many IO errors writing btree, disabling caching",
                EventKind.STORAGE_FAULT,
                "disabling caching",
                "",
            ),
            (
                "bcache: bch_count_io_errors() nvme0n1: IO error on writing btree.",
                EventKind.IO_ERROR,
                "IO error on writing btree",
                "nvme0n1",
            ),
            (
                "gfs2: fsid=hpc:scratch.0: about to withdraw this file system",
                EventKind.FS_ERROR,
                "about to withdraw this file system",
                "hpc:scratch.0",
            ),
            (
                "GFS2: fsid=hpc:scratch.0: withdrawing from cluster",
                EventKind.FS_ERROR,
                "withdrawing from cluster",
                "hpc:scratch.0",
            ),
            (
                "*** ocfs2 is very sorry to be fencing this system by restarting ***",
                EventKind.PANIC,
                "ocfs2 is very sorry to be fencing",
                "",
            ),
            (
                "wekafsio: N[run.log] total-sync-errs(ENOSPC(1), OTHER(0)) sync => -28",
                EventKind.FS_REMOTE,
                "total-sync-errs",
                "",
            ),
            (
                "F2FS-fs (sdb1): Stopped filesystem due to reason: 4",
                EventKind.FS_ERROR,
                "Stopped filesystem",
                "sdb1",
            ),
            (
                "bcachefs (sdb1): inconsistency detected - emergency read only at journal seq 8",
                EventKind.FS_READ_ONLY,
                "emergency read only",
                "sdb1",
            ),
            (
                "rpcrdma: Recv: local length error (1/0xd7)",
                EventKind.FS_REMOTE,
                "Recv: local length error",
                "",
            ),
            (
                "mpt2sas3: attempting task abort! scmd(ffff8814605d2100)",
                EventKind.IO_ERROR,
                "task abort",
                "mpt2sas3",
            ),
            (
                "mpt3sas_cm0: attempting host reset! scmd(0x00000000d2100)",
                EventKind.IO_ERROR,
                "host reset",
                "mpt3sas_cm0",
            ),
            (
                "sas: sas_scsi_find_task: aborting task 0x000000005c703676",
                EventKind.IO_ERROR,
                "sas_scsi_find_task: aborting task",
                "",
            ),
            (
                "pm80xx0:: pm8001_exec_internal_tmf_task 757:TMF task[1]timeout.",
                EventKind.IO_ERROR,
                "TMF task[1]timeout",
                "pm80xx0",
            ),
            (
                "pm80xx0:: process_oq  4169:Firmware Fatal error! Regval:0xc0f",
                EventKind.STORAGE_FAULT,
                "Firmware Fatal error",
                "pm80xx0",
            ),
            (
                "nvme nvme0: starting error recovery",
                EventKind.PATH_LOST,
                "starting error recovery",
                "nvme0",
            ),
            (
                "nvme nvme0: Failed reconnect attempt 3/60",
                EventKind.PATH_LOST,
                "Failed reconnect attempt",
                "nvme0",
            ),
            (
                "scsi host1: ib_srp: failed RECV status WR flushed (5) for CQE 00000000a216794f",
                EventKind.PATH_LOST,
                "failed RECV status",
                "host1",
            ),
            (
                "infiniband ionic_0: Couldn't open port 1",
                EventKind.NIC_INIT,
                "Couldn't open port",
                "ionic_0",
            ),
            (
                "idpf 0000:83:00.0: The driver was unable to contact the device's firmware. Check that the FW is running. Driver state= 0x2",
                EventKind.NIC_FAULT,
                "unable to contact the device's firmware",
                "0000:83:00.0",
            ),
            (
                "idpf 0000:83:00.0: HW reset detected",
                EventKind.NIC_RESET,
                "HW reset detected",
                "0000:83:00.0",
            ),
            (
                "pcieport 0000:c0:03.1: pciehp: Slot(12): Power fault",
                EventKind.SLOT_LINK_DOWN,
                "",
                "0000:c0:03.1",
            ),
            (
                "habanalabs hl3: TPC0_ECC_DERR: ECC error detected. address: 0x20. Syndrome: 0x1. wrapper id 3. critical 1.",
                EventKind.GPU_MEMORY_UNCORRECTED,
                "TPC0_ECC_DERR",
                "hl3",
            ),
            (
                'habanalabs hl3: Received H/W interrupt 61 ["SRAM12_SERR"]',
                EventKind.GPU_MEMORY_CORRECTED,
                "SRAM12_SERR",
                "hl3",
            ),
            (
                "amdgpu 0000:01:00.0: {14}poison is consumed by client 12, kick off gpu reset flow",
                EventKind.GPU_MEMORY_UNCORRECTED,
                "poison is consumed",
                "0000:01:00.0",
            ),
            (
                "amdgpu 0000:01:00.0: amdgpu: {9} RAS poison is created, no user action is needed.",
                EventKind.GPU_MEMORY_DEFERRED,
                "poison is created",
                "0000:01:00.0",
            ),
            (
                "infiniband rdmap16s27: Admin queue is closed",
                EventKind.NIC_FAULT,
                "Admin queue is closed",
                "rdmap16s27",
            ),
            (
                "efa 0000:00:06.0: Device isn't ready, abort com init",
                EventKind.NIC_INIT,
                "isn't ready",
                "0000:00:06.0",
            ),
            (
                "ice 0000:4c:00.0 rocep76s0: critical PE Error, GLPE_CRITERR=0x00011424",
                EventKind.NIC_RESET,
                "critical PE Error",
                "rocep76s0",
            ),
            (
                "irdma.gen_2 ice.roce.1: probe with driver irdma.gen_2 failed with error -110",
                EventKind.NIC_INIT,
                "irdma.gen_2",
                "ice.roce.1",
            ),
            (
                "irdma: probe of ice.roce.1 failed with error -110",
                EventKind.NIC_INIT,
                "irdma",
                "ice.roce.1",
            ),
            (
                "infiniband rocep7s0f1: Fatal error (1) on MAD QP (1)",
                EventKind.NIC_WARNING,
                "Fatal error",
                "rocep7s0f1",
            ),
            (
                "megaraid_sas 0000:18:00.0: 4108 (boot + 12s/0x0001/FATAL) - VD 00/0 is now OFFLINE",
                EventKind.STORAGE_FAULT,
                "FATAL",
                "0000:18:00.0",
            ),
            (
                "megaraid_sas 0000:18:00.0: 4109 (731424485s/0x0001/CRIT) - VD 00/0 is now DEGRADED",
                EventKind.RAID_DEGRADED,
                "VD 00/0 is now DEGRADED",
                "0000:18:00.0",
            ),
            (
                "megaraid_sas 0000:18:00.0: 4110 (731424485s/0x0008/FATAL) - Battery has failed and cannot support data retention. Please replace the battery",
                EventKind.IO_ERROR,
                "FATAL",
                "0000:18:00.0",
            ),
            (
                "mpi3mr0: flush pending commands for unrecoverable controller",
                EventKind.STORAGE_FAULT,
                "flush pending commands for unrecoverable controller",
                "mpi3mr0",
            ),
            (
                "qla2xxx [0000:41:00.0]-500b:3: LOOP DOWN detected (2 7 0 0).",
                EventKind.PATH_LOST,
                "LOOP DOWN",
                "0000:41:00.0",
            ),
            (
                "lpfc 0000:65:00.1: 7:0457 Adapter Hardware Error Data: x1 x2 x3",
                EventKind.STORAGE_FAULT,
                "0457 Adapter Hardware Error",
                "0000:65:00.1",
            ),
            (
                "wekafsio: ALL FEs down",
                EventKind.FS_REMOTE,
                "ALL FEs down",
                "",
            ),
            (
                "smartpqi 0000:89:00.0: controller offline",
                EventKind.STORAGE_FAULT,
                "controller offline",
                "0000:89:00.0",
            ),
            (
                "aacraid0: adapter kernel panic'd.",
                EventKind.IO_ERROR,
                "adapter kernel panic'd",
                "aacraid0",
            ),
            (
                "[Hardware Error]: Deferred error, no action required.",
                EventKind.MACHINE_CHECK_CORRECTED,
                "Deferred error",
                "",
            ),
        )
    ),
    *(
        (
            text,
            (EventKind.GPU_MEMORY_UNCORRECTED, None, "ERREVENT_ATHUB_INTERRUPT", device, None, ""),
        )
        for text, device in (
            (
                "amdgpu 0000:29:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
                "0000:29:00.0",
            ),
            (
                "amdgpu 0000:29:00.0: amdgpu: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
                "0000:29:00.0",
            ),
            (
                "amdgpu 0000:29:00.0: amdgpu: {3}Uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
                "0000:29:00.0",
            ),
        )
    ),
    (
        "NVRM: GPU0 nvCheckOkFailedNoLog: Check failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned "
        "from _gpushareddataSendDataPollRpc(pGpu, polledDataMask) @ gpu_user_shared_data.c:151",
        (EventKind.GPU_NEEDS_RESET, None, "", "", None, ""),
    ),
    (
        "NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F) returned "
        "from rmStatus @ kernel_ce_gv100.c:106",
        (EventKind.GPU_LOST, None, "", "", None, ""),
    ),
    (
        "NVRM: GPU3 kfspSendBootCommands_GB100: FSP boot cmds failed. RM cannot boot.",
        (EventKind.GPU_INIT, None, "kfspSendBootCommands", "", None, ""),
    ),
    (
        "amdgpu 0000:c7:00.0: amdgpu: PSP create ring failed!",
        (EventKind.GPU_INIT, None, "PSP create ring failed", "0000:c7:00.0", None, ""),
    ),
    (
        "amdgpu 0000:85:00.0: amdgpu: failed to load ucode VCN1(0x38) ",
        (EventKind.GPU_FIRMWARE, None, "VCN1", "0000:85:00.0", None, ""),
    ),
    (
        "libceph (fb30d64e-7a8c-46d3-bbd7-77a3b1f080d1 e857): mon2 (1)10.0.0.247:6789 session lost, hunting for new mon",
        (EventKind.FS_MONITOR, None, "", "mon2", None, ""),
    ),
    (
        "EXT4-fs error (device rbd0) in ext4_reserve_inode_write:5795: Journal has aborted",
        (EventKind.FS_VOLUME, None, "ext4_reserve_inode_write", "rbd0", None, ""),
    ),
    (
        "EXT4-fs (loop7): Remounting filesystem read-only",
        (EventKind.FS_VOLUME, None, "", "loop7", None, ""),
    ),
    (
        "EXT4-fs (dm-3): error count since last fsck: 10",
        (EventKind.FS_UNCHECKED, None, "error count since last fsck", "dm-3", None, ""),
    ),
    (
        "EXT4-fs warning (device sda1): ext4_setup_super:2345: mounting fs with errors, running e2fsck is recommended",
        (EventKind.FS_UNCHECKED, None, "mounting fs with errors", "sda1", None, ""),
    ),
    (
        "md/raid:md3: raid level 5 active with 3 out of 4 devices, algorithm 2",
        (EventKind.RAID_DEGRADED, None, "member missing", "md3", None, ""),
    ),
    (
        "LustreError: 15c-8: MGC10.1.1.1@o2ib: Configuration from log fs-client failed from MGS -5. Communication error",
        (EventKind.FS_REMOTE, None, "failed from MGS", "MGC10.1.1.1@o2ib", None, ""),
    ),
    (
        "habanalabs hl3: Device heartbeat failed! PCI link is down",
        (EventKind.GPU_LOST, None, "", "hl3", None, ""),
    ),
    *(
        (f"amdgpu 0000:c5:00.0: {text}", (EventKind.GPU_HUNG, None, unit, "0000:c5:00.0", None, ""))
        for text, unit in (
            (
                "amdgpu: SMU: I'm not done with your previous command: SMN_C2PMSG_66:0x00000012 SMN_C2PMSG_82:0x00000005",
                "SMU",
            ),
            ("SMU: No response msg_reg: 12 resp_reg: 0", "SMU"),
            ("amdgpu: Failed to export SMU metrics table!", "SMU"),
            ("amdgpu: Msg issuing pre-check failed and SMU may be not in the right state!", "SMU"),
            ("amdgpu: MES failed to respond to msg=REMOVE_QUEUE", "MES"),
            ("amdgpu: MES(1) failed to respond to msg=INVALIDATE_TLBS", "MES"),
            ("amdgpu: MES failed to response msg=2", "MES"),
        )
    ),
    (
        "NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting "
        "for RPC response from GPU4 GSP! Expected function 103 (GSP_RM_ALLOC) (0x2081 0x4).",
        (EventKind.XID, 119, "", "0000:9b:00.0", 2024380, "nvidia-smi"),
    ),
    (
        "NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception "
        "on (GPC 7, TPC 3, SM 0): Illegal Instruction Parameter",
        (EventKind.XID, 13, "GPC 7 TPC 3", "0000:cb:00.0", None, ""),
    ),
    (  # these four: an H200, driver 580.159.04, after an illegal address and a misaligned one
        "NVRM: Xid (PCI:0000:00:06): 31, pid=924, name=python3, channel 0x0000000a, intr 00000000. MMU Fault: "
        "ENGINE GRAPHICS GPC1 GPCCLIENT_T1_8 faulted @ 0x8398_2fe00000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
        (EventKind.XID, 31, "", "0000:00:06.0", 924, "python3"),
    ),
    (
        "NVRM: Xid (PCI:0000:00:06): 13, Graphics SM Warp Exception on (GPC 1, TPC 4, SM 0): Misaligned Address",
        (EventKind.XID, 13, "GPC 1 TPC 4", "0000:00:06.0", None, ""),
    ),
    (
        "NVRM: Xid (PCI:0000:00:06): 13, Graphics Exception: ESR 0x519730=0x501000f 0x519734=0x20 "
        "0x519728=0x1f81fb60 0x51972c=0x1174",
        (EventKind.XID, 13, "", "0000:00:06.0", None, ""),
    ),
    (
        "NVRM: Xid (PCI:0000:00:06): 43, pid=925, name=python3, channel 0x0000000a",
        (EventKind.XID, 43, "", "0000:00:06.0", 925, "python3"),
    ),
    (
        "NVRM: Xid (PCI:0000:01:00): 32, Channel ID 00000000 intr 00004000",
        (EventKind.XID, 32, "", "0000:01:00.0", None, ""),
    ),
    (
        "NVRM: Xid (0000:03:00): 31, Ch 00000003, engmask 00000101, intr 10000000",
        (EventKind.XID, 31, "", "0000:03:00.0", None, ""),
    ),
    (
        "NVRM: Xid (PCI:0000:0b:00 GPU-I:05): 94, pid=7194, name=python3, Contained: SM",
        (EventKind.XID, 94, "", "0000:0b:00.0", 7194, "python3"),
    ),
    (
        "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149",
        (EventKind.XID, 45, "caused by 149", "0000:dc:00.0", 1818990, "python3"),
    ),
    (
        "NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 "
        "(0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)",
        (EventKind.XID, 145, "0 RLW_RXPIPE Nonfatal link 13 status 0x8", "0018:01:00.0", None, ""),
    ),
    (
        "NVRM: Xid (PCI:0000:00:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 "
        "(0x026001c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
        (EventKind.XID, 149, "38 NETIR_LINK_EVT Fatal link 00", "0000:00:00.0", None, ""),
    ),
    (
        "NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)",
        (EventKind.XID, 149, "0 NETIR Fatal link -1", "0019:01:00.0", None, ""),
    ),
    (
        "NVRM: Xid (PCI:0000:3b:00): 74, pid=1, name=x, NVLink: fatal error detected on link 6"
        "(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
        (EventKind.XID, 74, "link 6 connection", "0000:3b:00.0", 1, "x"),
    ),
    (
        "NVRM: Xid (PCI:0000:3b:00): 74, NVLink: fatal error detected on link 6(0x800001, 0x0, 0x0)",
        (EventKind.XID, 74, "link 6 ignorable", "0000:3b:00.0", None, ""),
    ),
    (
        "NVRM: Xid (PCI:0000:3b:00): 154, pid=1, name=x, GPU recovery action changed from 0x0 (None) "
        "to 0x2 (Node Reboot Required)",
        (EventKind.XID, 154, "2 Node Reboot Required", "0000:3b:00.0", 1, "x"),
    ),
    (
        "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up (First)",
        (EventKind.SXID, 20034, "fatal link 48", "0000:06:00.0", None, ""),
    ),
    (
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12021, Non-fatal, Link 32 egress ECC",
        (EventKind.SXID, 12021, "nonfatal link 32", "0000:c1:00.0", None, ""),
    ),
    (
        "NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.",
        (EventKind.GPU_LOST, None, "", "0000:91:00.0", None, ""),
    ),
    (
        "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30).",
        (EventKind.GSP, None, "", "0000:9b:00.0", None, ""),
    ),
    (
        "NVRM: GPU0 _kgspRpcRecvPoll: GSP RM heartbeat timed out",
        (EventKind.GSP_HEARTBEAT, None, "_kgspRpcRecvPoll", "", None, ""),
    ),
    (
        "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!",
        (EventKind.NVLINK_DISCOVERY, None, "knvlinkDiscoverPostRxDetLinks", "", None, ""),
    ),
    (
        "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x62:0xffff:2477)",
        (EventKind.GPU_INIT, None, "", "0000:3b:00.0", None, ""),
    ),
    (
        "NVRM: API mismatch: the client has the version 535.1, but",
        (EventKind.DRIVER_MISMATCH, None, "", "", None, ""),
    ),
    (
        "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Severity 1 Engine instance 48",
        (EventKind.SXID, 20034, "fatal", "0000:06:00.0", None, ""),
    ),
    (
        "NVRM: API mismatch: the client 'nvidia-smi' (pid 4711) has the version 570.86.10, but",
        (EventKind.DRIVER_MISMATCH, None, "", "", 4711, "nvidia-smi"),
    ),
    (
        "nvme 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        (EventKind.PCIE_CORRECTED, None, "Physical Layer", "0000:01:00.0", None, ""),
    ),
    (
        "nvidia 0000:3b:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer, (Requester ID)",
        (EventKind.PCIE_UNCORRECTED, None, "Transaction Layer", "0000:3b:00.0", None, ""),
    ),
    (
        "nvidia 0000:3b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Inaccessible, (Unregistered Agent ID)",
        (EventKind.PCIE_FATAL, None, "Inaccessible", "0000:3b:00.0", None, ""),
    ),
    (
        "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:02:00.0",
        (EventKind.PCIE_FATAL, None, "", "0000:02:00.0", None, ""),
    ),
    (
        "pcieport 0000:00:01.0: AER: Corrected error received: id=00e0",
        (EventKind.PCIE_CORRECTED, None, "", "0000:00:01.0", None, ""),
    ),
    (
        "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.",
        (EventKind.UVM_FAILED, None, "global fatal error 0x60", "", None, ""),
    ),
    (
        "amdgpu 0000:7c:00.0: amdgpu: ASIC reset failed with error, -62 for drm dev, 0000:7c:00.0",
        (EventKind.GPU_RESET_FAILED, None, "ASIC reset failed", "0000:7c:00.0", None, ""),
    ),
    (
        "amdgpu 0000:7c:00.0: GPU mode2 reset failed",
        (EventKind.GPU_RESET_FAILED, None, "GPU mode2 reset failed", "0000:7c:00.0", None, ""),
    ),
    (
        "amdgpu 0000:7c:00.0: GPU Recovery Failed: -62",
        (EventKind.GPU_RESET_FAILED, None, "GPU Recovery Failed", "0000:7c:00.0", None, ""),
    ),
    (
        "NETDEV WATCHDOG: eth0: transmit timed out",
        (EventKind.NIC_HUNG, None, "transmit timed out", "eth0", None, ""),
    ),
    (
        "bnxt_en 0000:41:00.0: QPLIB: cmdq[0xd3a]=0x9 status 0x3",
        (EventKind.NIC_COMMAND, None, "0x9", "0000:41:00.0", None, ""),
    ),
    (
        "pcieport 0000:a9:10.0: AER: device recovery successful",
        (EventKind.DEVICE_RECOVERED, None, "recovery successful", "0000:a9:10.0", None, ""),
    ),
    (
        "mlx5_core 0000:5e:00.0: mlx5_health_try_recover:349:(pid 7): health recovery succeeded",
        (EventKind.DEVICE_RECOVERED, None, "health recovery succeeded", "0000:5e:00.0", None, ""),
    ),
    (
        "pcieport 0000:16:02.0: pciehp: Slot(2): Link Down",
        (EventKind.SLOT_LINK_DOWN, None, "", "0000:16:02.0", None, ""),
    ),
    (
        "pcieport 0000:16:02.0: pciehp: Slot(2): Card not present",
        (EventKind.SLOT_LINK_DOWN, None, "", "0000:16:02.0", None, ""),
    ),
    (
        "pcieport 0000:16:02.0: pciehp: Slot(2): Cannot train link: status 0x0001",
        (EventKind.SLOT_LINK_DOWN, None, "", "0000:16:02.0", None, ""),
    ),
    (
        "pcieport 0000:16:02.0: pciehp: Slot(2): Card present",
        (EventKind.SLOT_LINK_UP, None, "", "0000:16:02.0", None, ""),
    ),
    (
        "pcieport 10000:16:02.0: pciehp: Slot(0-1): Link Up",
        (EventKind.SLOT_LINK_UP, None, "", "10000:16:02.0", None, ""),
    ),
    (
        "mlx5_core 0000:5e:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link "
        "at 0000:5d:00.0 (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)",
        (EventKind.PCIE_LIMITED, None, "8.0 GT/s PCIe x8 link", "0000:5e:00.0", None, ""),
    ),
    (
        "EDAC MC1: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x1)",
        (EventKind.MEMORY_CORRECTED, 1, "CPU_SrcID#0_Ha#0_Chan#1_DIMM#0", "MC1", None, ""),
    ),
    (
        "EDAC MC0: 1 UE multi-bit ECC on mc#0csrow#2channel#1 (csrow:2 channel:1 page:0x4)",
        (EventKind.MEMORY_UNCORRECTED, 1, "mc#0csrow#2channel#1", "MC0", None, ""),
    ),
    (
        "Memory failure: 0x5fcd: Sending SIGBUS to python:1234 due to hardware memory corruption",
        (EventKind.MEMORY_UNCORRECTED, None, "", "", 1234, "python"),
    ),
    (
        "mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 4: b200000000070f0f",
        (EventKind.MACHINE_CHECK, None, "4", "", None, ""),
    ),
    (
        "{1}[Hardware Error]: event severity: fatal",
        (EventKind.MACHINE_CHECK, None, "fatal", "", None, ""),
    ),
    (
        "mce: [Hardware Error]: Machine check events logged",
        (EventKind.MACHINE_CHECK_CORRECTED, None, "logged", "", None, ""),
    ),
    (
        "mce: CPU3: Core temperature above threshold, cpu clock throttled (total events = 8)",
        (EventKind.THROTTLED, None, "Core", "", None, ""),
    ),
    (
        "thermal thermal_zone0: critical temperature reached (105 C), shutting down",
        (EventKind.OVERHEATED, None, "", "thermal_zone0", None, ""),
    ),
    (
        "mlx5_core 0000:3b:00.0 ens1f0np0: Link down",
        (EventKind.LINK_DOWN, None, "", "ens1f0np0", None, ""),
    ),
    (
        "mlx5_core 0000:3b:00.0 ens1f0np0: Link up",
        (EventKind.LINK_UP, None, "", "ens1f0np0", None, ""),
    ),
    (
        "bnxt_en 0000:01:00.0 enp1s0f0np0: NIC Link is Down",
        (EventKind.LINK_DOWN, None, "", "enp1s0f0np0", None, ""),
    ),
    (
        "ixgbe 0000:01:00.1: NIC Link is Down",
        (EventKind.LINK_DOWN, None, "", "0000:01:00.1", None, ""),
    ),
    ("e1000e: eth7 NIC Link is Down", (EventKind.LINK_DOWN, None, "", "eth7", None, "")),
    ("tg3 0000:02:00.0 eth0: Link is down", (EventKind.LINK_DOWN, None, "", "eth0", None, "")),
    (
        "bond0: (slave eth1): link status definitely down, disabling slave",
        (EventKind.LINK_DOWN, None, "bond", "eth1", None, ""),
    ),
    (
        "bond0: (slave eth1): link status definitely up, 25000 Mbps full duplex",
        (EventKind.LINK_UP, None, "bond", "eth1", None, ""),
    ),
    (
        "bonding: bond0: link status definitely up for interface eth1, 25000 Mbps full duplex",
        (EventKind.LINK_UP, None, "bond", "eth1", None, ""),
    ),
    (
        "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable unplugged",
        (EventKind.TRANSCEIVER, None, "Cable unplugged", "0000:5e:00.0", None, ""),
    ),
    (
        "mlx5_core 0000:5e:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count",
        (EventKind.NIC_FAULT, None, "device's health compromised", "0000:5e:00.0", None, ""),
    ),
    (
        "mlx5_core 0000:5e:00.0: mlx5_cmd_out_err:808:(pid 1042): ACCESS_REG(0x805) op_mod(0x1) failed, "
        "status bad operation(0x2), syndrome (0x6c3a54), err(-22)",
        (EventKind.NIC_COMMAND, None, "ACCESS_REG", "0000:5e:00.0", 1042, ""),
    ),
    (
        "NETDEV WATCHDOG: eth0 (bnxt_en): transmit queue 3 timed out",
        (EventKind.NIC_HUNG, None, "transmit timed out", "eth0", None, ""),
    ),
    (
        "Out of memory: Killed process 812 (pt_main (x)) total-vm:1kB, anon-rss:1kB",
        (EventKind.OOM_KILL, None, "node", "", 812, "pt_main (x"),
    ),
    (
        "Killed process 812, UID 48, (httpd) total-vm:1kB",
        (EventKind.OOM_KILL, None, "node", "", 812, "httpd"),
    ),
    (
        "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:1234]",
        (EventKind.SOFT_LOCKUP, 22, "", "", 1234, "python"),
    ),
    (
        "watchdog: BUG: soft lockup - CPU#3 stuck for 60s! [python:1234]",
        (EventKind.SOFT_LOCKUP, 60, "lasting", "", 1234, "python"),
    ),
    (
        "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client",
        (EventKind.MODULE_REFUSED, None, "nvidia_peermem", "", None, ""),
    ),
    (
        "mlx5_ib: Unknown symbol ib_get_cached_pkey (err -22)",
        (EventKind.MODULE_REFUSED, None, "mlx5_ib", "", None, ""),
    ),
    (
        "nvidia: version magic '5.15.0-91-generic SMP mod_unload modversions ' should be '5.15.0-92-generic SMP mod_unload modversions '",
        (EventKind.MODULE_REFUSED, None, "nvidia", "", None, ""),
    ),
    (
        "NVRM: The NVIDIA probe routine was not called for 8 device(s).",
        (EventKind.GPU_UNCLAIMED, None, "", "", None, ""),
    ),
    (
        "NVRM: No NVIDIA devices probed.",
        (EventKind.GPU_UNCLAIMED, None, "", "", None, ""),
    ),
    (
        "[drm:sdma_v4_0_ring_test_ring [amdgpu]] *ERROR* amdgpu: ring 11 test failed (0xCAFEDEAD)",
        (EventKind.GPU_INIT, None, "ring", "", None, ""),
    ),
    (
        "ice 0000:98:00.0 ens1f0: tx_timeout recovery level 2, txqueue 31",
        (EventKind.NIC_RESET, None, "tx_timeout", "ens1f0", None, ""),
    ),
    (
        "i40e 0000:08:00.1: eth9: tx_timeout recovery level 1",
        (EventKind.NIC_RESET, None, "tx_timeout", "eth9", None, ""),
    ),
    (
        "NMI watchdog: Watchdog detected hard LOCKUP on cpu 3",
        (EventKind.HARD_LOCKUP, None, "", "", None, ""),
    ),
    (
        "INFO: task kworker/u8:2:1234 blocked for more than 120 seconds.",
        (EventKind.HUNG_TASK, None, "", "", 1234, "kworker/u8:2"),
    ),
    (
        "rcu: INFO: rcu_sched self-detected stall on CPU",
        (EventKind.RCU_STALL, None, "rcu_sched", "", None, ""),
    ),
    (
        "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls: reading directory lblock 0",
        (EventKind.FS_ERROR, None, "ext4_find_entry", "sda1", None, ""),
    ),
    (
        "EXT4-fs (sda1): Remounting filesystem read-only",
        (EventKind.FS_READ_ONLY, None, "", "sda1", None, ""),
    ),
    (
        "XFS (nvme0n1p1): Corruption detected. Unmount and run xfs_repair",
        (EventKind.FS_ERROR, None, "Corruption", "nvme0n1p1", None, ""),
    ),
    (
        "nfs: server nas1.example not responding, still trying",
        (EventKind.FS_REMOTE, None, "not responding", "nas1.example", None, ""),
    ),
    (
        "nvme nvme0: I/O tag 123 (307b) opcode 0x2 (I/O Cmd) QID 4 timeout, reset controller",
        (EventKind.NVME_TIMEOUT, None, "reset controller", "nvme0", None, ""),
    ),
    (
        "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10",
        (EventKind.NVME_RESET, None, "", "nvme0", None, ""),  # "will reset": it goes on
    ),
    (
        "nvme nvme0: Disabling device after reset failure: -19",
        (EventKind.NVME_DOWN, None, "", "nvme0", None, ""),
    ),
    (
        "nvme nvme1: resetting controller",
        (EventKind.NVME_RESET, None, "", "nvme1", None, ""),
    ),
    (
        "blk_update_request: I/O error, dev nvme0n1, sector 123 op 0x0:(READ) flags 0x0",
        (EventKind.IO_ERROR, None, "", "nvme0n1", None, ""),
    ),
    (
        "Buffer I/O error on dev sda1, logical block 0, lost async page write",
        (EventKind.IO_ERROR, None, "", "sda1", None, ""),
    ),
    (
        "critical medium error, dev sda, sector 12 op 0x0:(READ)",
        (EventKind.MEDIUM_ERROR, None, "medium", "sda", None, ""),
    ),
    (
        "python3[1234]: segfault at 0 ip 00007f1 sp 00007ff error 4 in libnccl.so.2.18[7f00+1000]",
        (EventKind.SEGFAULT, None, "libnccl.so.2.18", "", 1234, "python3"),
    ),
    (
        "traps: pt_main_thread[9] general protection fault ip:7f0 sp:7ff error:0 in libcuda.so.1[7f+1]",
        (EventKind.SEGFAULT, None, "libcuda.so.1", "", 9, "pt_main_thread"),
    ),
    (
        "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further",
        (EventKind.PEERMEM, None, "ERROR detected invalid context", "", None, ""),
    ),
    (
        "pcieport 0000:3a:00.0: DPC: containment event, status:0x1f01 source:0x0000",
        (EventKind.PCIE_FATAL, None, "containment", "0000:3a:00.0", None, ""),
    ),
    (
        "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the "
        "PCIe slot (27W).",
        (EventKind.NIC_WARNING, None, "Detected insufficient power", "0000:5c:00.0", None, ""),
    ),
    (
        "nvme0n1: I/O Cmd(0x2) @ LBA 123, 8 blocks, I/O Error (sct 0x3 / sc 0x71)",
        (EventKind.IO_ERROR, None, "sct 0x3 / sc 0x71", "nvme0n1", None, ""),
    ),
    (
        "nf_conntrack: nf_conntrack: table full, dropping packet",
        (EventKind.LIMIT_REACHED, None, "nf_conntrack", "", None, ""),
    ),
    (
        "VFS: file-max limit 1000000 reached",
        (EventKind.DESCRIPTORS_LOW, None, "file-max", "", None, ""),
    ),
    (
        "cgroup: fork rejected by pids controller in /slurm/job_7",
        (EventKind.LIMIT_REACHED, None, "pids controller", "", None, ""),
    ),
    (
        "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: 8c00004000010092",
        (EventKind.MACHINE_CHECK_CORRECTED, None, "7", "", None, ""),  # bit 61 is not set
    ),
    (
        "mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 4: a600000000020408",
        (EventKind.MACHINE_CHECK_OLD, None, "4", "", None, ""),  # bits 57 and 61, and not 60
    ),
    (
        "mce: [Hardware Error]: CPU 0: Machine Check Exception: 5 Bank 4: a600000000020408",
        (EventKind.MACHINE_CHECK, None, "4", "", None, ""),
    ),
    (
        "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: ac00004000010092",
        (EventKind.MACHINE_CHECK, None, "7", "", None, ""),
    ),
    (
        "[Hardware Error]: event severity: fatal",
        (EventKind.MACHINE_CHECK, None, "fatal", "", None, ""),
    ),
    (
        "mce: CPU12: Package temperature is above threshold, cpu clock is throttled (total events = 1)",
        (EventKind.THROTTLED, None, "Package", "", None, ""),
    ),
    (
        "MCE 0x1234: Killing python:123 due to hardware memory corruption",
        (EventKind.MEMORY_UNCORRECTED, None, "", "", 123, "python"),
    ),
    (
        "pciehp 0000:00:1c.0:pcie004: Slot(8): Link Down",
        (EventKind.SLOT_LINK_DOWN, None, "", "0000:00:1c.0", None, ""),
    ),
    (
        "BTRFS error (device sdb): bad tree block start, mirror 1 want 30572544 have 0",
        (EventKind.FS_ERROR, None, "", "sdb", None, ""),
    ),
    (
        "BTRFS error (device sdb): failed to read chunk tree: -5",
        (EventKind.FS_ERROR, None, "", "sdb", None, ""),
    ),
    (
        "BTRFS error (device sdb) in btrfs_run_delayed_refs:2149: errno=-5 IO failure",
        (EventKind.FS_ERROR, None, "", "sdb", None, ""),
    ),
    (
        "BTRFS error (device sdb state E): devid 2 uuid 3b4c-77 is missing",
        (EventKind.RAID_DEGRADED, None, "member missing", "sdb", None, ""),
    ),
    (
        "Buffer I/O error on dev dm-4, logical block 10, lost async page write",
        (EventKind.IO_ERROR, None, "", "dm-4", None, ""),
    ),
    (
        "I/O error, dev nvme0n1, sector 0 op 0x0:(READ) flags 0x0",
        (EventKind.IO_ERROR, None, "", "nvme0n1", None, ""),
    ),
    (
        "mlx4_core 0000:04:00.0: Internal error detected:",
        (EventKind.NIC_FAULT, None, "Internal error detected", "0000:04:00.0", None, ""),
    ),
    (
        "mlx4_core 0000:04:00.0: command 0x1a timed out (go bit not cleared)",
        (EventKind.NIC_COMMAND, None, "0x1a", "0000:04:00.0", None, ""),
    ),
    (
        "bnxt_en 0000:01:00.0 eth0: TX timeout detected, starting reset task!",
        (EventKind.NIC_HUNG, None, "TX timeout", "eth0", None, ""),
    ),
    (
        "bnxt_en 0000:01:00.0 eth0: Error (timeout: 500015) msg {0x90 0x4a3} len:0",
        (EventKind.NIC_COMMAND, None, "0x90", "eth0", None, ""),
    ),
    (
        "ena 0000:00:05.0 ens5: The number of lost tx completions is above the threshold (129 > 128). "
        "Reset the device",
        (EventKind.NIC_RESET, None, "lost tx completions", "ens5", None, ""),
    ),
    (
        "hfi1 0000:05:00.0: hfi1_0: logical state changed to PORT_DOWN (0x1)",
        (EventKind.LINK_DOWN, None, "", "hfi1_0", None, ""),
    ),
    (
        "hfi1 0000:05:00.0: hfi1_0: logical state changed to PORT_ACTIVE (0x4)",
        (EventKind.LINK_UP, None, "", "hfi1_0", None, ""),
    ),
    (
        "cxgb4 0000:03:00.4 eth4: link down",
        (EventKind.LINK_DOWN, None, "", "eth4", None, ""),
    ),
    (
        "qede 0000:03:00.0: [qede_link_update:1234(eth0)]Link is down",
        (EventKind.LINK_DOWN, None, "", "eth0", None, ""),
    ),
    (
        "EXT4-fs error (device sda1) in ext4_reserve_inode_write:5729: Corrupt filesystem",
        (EventKind.FS_ERROR, None, "ext4_reserve_inode_write", "sda1", None, ""),
    ),
    (
        "EXT4-fs warning (device sda1): ext4_end_bio:343: I/O error 10 writing to inode 123",
        (EventKind.IO_ERROR, None, "ext4_end_bio", "sda1", None, ""),
    ),
    (
        "XFS (nvme0n1p1): Metadata CRC error detected at xfs_agf_read_verify+0x1/0x2 [xfs], block 0x1",
        (EventKind.FS_ERROR, None, "CRC error", "nvme0n1p1", None, ""),
    ),
    (
        "EXT4-fs (nvme1n1): I/O error while writing superblock",
        (EventKind.FS_ERROR, None, "I/O error while writing superblock", "nvme1n1", None, ""),
    ),
    (
        "JBD2: I/O error when updating journal superblock for nvme1n1-8.",
        (
            EventKind.FS_ERROR,
            None,
            "I/O error when updating journal superblock",
            "nvme1n1",
            None,
            "",
        ),
    ),
    (
        "mlx5_core 0000:98:00.0: print_health_info:424:(pid 0): Health issue observed, firmware "
        "internal error, severity(3) ERROR:",
        (
            EventKind.NIC_FAULT,
            None,
            "Health issue observed, firmware internal error",
            "0000:98:00.0",
            None,
            "",
        ),
    ),
    (
        "WARNING: Pool 'tank' has encountered an uncorrectable I/O failure and has been suspended.",
        (EventKind.FS_ERROR, None, "pool suspended", "tank", None, ""),
    ),
    (
        "nvme0c0n1: Read(0x2) @ LBA 1, 8 blocks, Unrecovered Read Error (sct 0x2 / sc 0x81) DNR",
        (EventKind.MEDIUM_ERROR, None, "sct 0x2 / sc 0x81", "nvme0c0n1", None, ""),
    ),
    (
        "sd 0:0:0:0: [sda] tag#1 Sense Key : Medium Error [current]",
        (EventKind.MEDIUM_ERROR, None, "Medium Error", "sda", None, ""),
    ),
    (
        "libceph (fb30d64e-7a8c-46d3-bbd7-77a3b1f080d1 e857): osd2 down",
        (EventKind.FS_REMOTE, None, "down", "osd2", None, ""),
    ),
    ("ceph: mds0 hung", (EventKind.FS_REMOTE, None, "hung", "mds0", None, "")),
    (
        "CIFS: VFS: \\\\nas1 has not responded in 180 seconds. Reconnecting...",
        (EventKind.FS_REMOTE, None, "has not responded", "\\\\nas1", None, ""),
    ),
    (
        "LustreError: 11-0: scratch-OST0001-osc-ffff8800: operation ost_read to node 10.0.0.1@o2ib "
        "failed: rc = -107",
        (EventKind.FS_REMOTE, None, "ost_read", "scratch-OST0001-osc", None, ""),
    ),
    (
        "LNetError: 12:0:(o2iblnd_cb.c:3321:kiblnd_check_txs_locked()) Timed out tx: active_txs, 0 s",
        (EventKind.FS_REMOTE, None, "Timed out tx", "", None, ""),
    ),
    ("Oops: 0002 [#1] SMP NOPTI", (EventKind.OOPS, None, "Oops", "", None, "")),
    (
        "Kernel panic - not syncing: Fatal exception",
        (EventKind.PANIC, None, "Fatal exception", "", None, ""),
    ),
    (
        "i40e 0000:a1:00.0 ens44f0np0: NETDEV WATCHDOG: CPU: 214: transmit queue 22 timed out 5376 ms",
        (EventKind.NIC_HUNG, None, "transmit timed out", "ens44f0np0", None, ""),
    ),
    (
        "virtio_net virtio0 eth0: NETDEV WATCHDOG: CPU: 1: transmit queue 0 timed out 5120 ms",
        (EventKind.NIC_HUNG, None, "transmit timed out", "eth0", None, ""),
    ),
    (
        "dummy0: NETDEV WATCHDOG: CPU: 1: transmit queue 0 timed out 5120 ms",
        (EventKind.NIC_HUNG, None, "transmit timed out", "dummy0", None, ""),
    ),
    (
        "NETDEV WATCHDOG: eth0 (bnxt_en): transmit queue 3 timed out 5120 ms",
        (EventKind.NIC_HUNG, None, "transmit timed out", "eth0", None, ""),
    ),
    (
        "mlx5_core 0000:ab:00.0 eth2: TX timeout detected",
        (EventKind.NIC_HUNG, None, "TX timeout", "eth2", None, ""),
    ),
    (
        "mlx5_core 0000:ab:00.0 eth2: TX timeout on queue: 22, SQ: 0x10, CQ: 0x2, SQ Cons: 0x1 SQ Prod: 0x2, usecs since last trans: 15000000",
        (EventKind.NIC_HUNG, None, "TX timeout", "eth2", None, ""),
    ),
    (
        "mlx4_en: eth0: TX timeout on queue: 3, QP: 0x1, CQ: 0x2, Cons: 0x3, Prod: 0x4",
        (EventKind.NIC_HUNG, None, "TX timeout", "eth0", None, ""),
    ),
    (
        "i40e 0000:18:00.0 eno1: tx_timeout: VSI_seid: 390, Q 22, NTC: 0x1, HWB: 0x1, NTU: 0x1, TAIL: 0x1, INT: 0x0",
        (EventKind.NIC_HUNG, None, "tx_timeout", "eno1", None, ""),
    ),
    (
        "i40e 0000:18:00.0 eno1: tx_timeout recovery unsuccessful, device is in non-recoverable state.",
        (EventKind.NIC_FAULT, None, "device is in non-recoverable", "eno1", None, ""),
    ),
    (
        "ixgbe 0000:18:00.0 eno1: Detected Tx Unit Hang",
        (EventKind.NIC_HUNG, None, "Detected Tx Unit Hang", "eno1", None, ""),
    ),
    (
        "ixgbe 0000:18:00.0 eno1: Reset adapter",
        (EventKind.NIC_RESET, None, "Reset adapter", "eno1", None, ""),
    ),
    (
        "bnxt_en 0000:41:00.0 eth0: Non-fatal firmware reset event, data1: 0x1, data2: 0x0, min wait 2000 ms, max wait 5000 ms",
        (EventKind.NIC_RESET, None, "Non-fatal firmware reset event", "eth0", None, ""),
    ),
    (
        "bnxt_en 0000:41:00.0 eth0: Fatal firmware reset event, data1: 0x1, data2: 0x0, min wait 2000 ms, max wait 5000 ms",
        (EventKind.NIC_FAULT, None, "Fatal firmware reset event", "eth0", None, ""),
    ),
    (
        "bnxt_en 0000:41:00.0: QPLIB: cmdq[0x31]=0x9 timedout (20000)msec",
        (EventKind.NIC_HUNG, None, "timedout", "0000:41:00.0", None, ""),
    ),
    (
        "efa 0000:00:1d.0 rdmap0s29: Wait for completion (polling) timeout",
        (EventKind.NIC_FAULT, None, "Wait for completion (polling) timeout", "rdmap0s29", None, ""),
    ),
    (
        "efa 0000:00:1d.0 rdmap0s29: The device didn't send any completion for admin cmd CREATE_QP(1) status 3 (ctx 0x1, sq producer: 1, sq consumer: 1, cq consumer: 1)",
        (EventKind.NIC_FAULT, None, "The device didn't send any completion", "rdmap0s29", None, ""),
    ),
    (
        "efa 0000:00:1d.0: EFA device init failed",
        (EventKind.NIC_INIT, None, "EFA device init failed", "0000:00:1d.0", None, ""),
    ),
    (
        "gve 0000:00:04.0: Reset failed! !!! DISABLING ALL QUEUES !!!",
        (EventKind.NIC_FAULT, None, "Reset failed", "0000:00:04.0", None, ""),
    ),
    (
        "hns3 0000:7d:00.0: HNS Non-Fatal RAS error(status=0x40) identified",
        (EventKind.NIC_RESET, None, "HNS Non-Fatal RAS error", "0000:7d:00.0", None, ""),
    ),
    (
        "ice 0000:31:00.0: HW runtime init FAIL status = -5 last cmpl = 3",
        (EventKind.NIC_INIT, None, "HW runtime init FAIL", "0000:31:00.0", None, ""),
    ),
    (
        "i40e 0000:18:00.0: Entering recovery mode due to repeated FW resets. This may take several minutes.",
        (EventKind.NIC_FAULT, None, "recovery mode", "0000:18:00.0", None, ""),
    ),
    (
        "mlx5_core 0000:01:00.0: mlx5_load_one failed with error code -22",
        (EventKind.NIC_INIT, None, "mlx5_load_one", "0000:01:00.0", None, ""),
    ),
    (
        "mlx5_core 0000:ab:00.0: probe_one:1938:(pid 812): mlx5_init_one failed with error code -110",
        (EventKind.NIC_INIT, None, "mlx5_init_one", "0000:ab:00.0", None, ""),
    ),
    (
        "mlx5_core: probe of 0000:01:00.0 failed with error -22",
        (EventKind.NIC_INIT, None, "mlx5_core", "0000:01:00.0", None, ""),
    ),
    (
        "mlx5_core 0000:01:00.0: probe with driver mlx5_core failed with error -110",
        (EventKind.NIC_INIT, None, "mlx5_core", "0000:01:00.0", None, ""),
    ),
    (
        "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN",
        (EventKind.LINK_DOWN, None, "", "mlx5_5", None, ""),
    ),
    (
        "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link ACTIVE",
        (EventKind.LINK_UP, None, "", "mlx5_5", None, ""),
    ),
    (
        "igb 0000:07:00.0 eth0: igb: eth0 NIC Link is Down",
        (EventKind.LINK_DOWN, None, "", "eth0", None, ""),
    ),
    (
        "mlx5_core 0000:5e:00.0: Port module event[error]: module 0, Cable error, High Temperature",
        (EventKind.TRANSCEIVER_HOT, None, "High Temperature", "0000:5e:00.0", None, ""),
    ),
    (
        "mlx5_core 0000:5e:00.0: Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)",
        (
            EventKind.TRANSCEIVER,
            None,
            "Cable error, Bus stuck (I2C or data shorted)",
            "0000:5e:00.0",
            None,
            "",
        ),
    ),
    (
        "nvidia: probe of 0000:3b:00.0 failed with error -1",
        (EventKind.GPU_INIT, None, "nvidia", "0000:3b:00.0", None, ""),
    ),
    (
        "amdgpu 0000:c1:00.0: probe with driver amdgpu failed with error -22",
        (EventKind.GPU_INIT, None, "amdgpu", "0000:c1:00.0", None, ""),
    ),
    (
        "amdgpu 0000:c1:00.0: amdgpu: Fatal error during GPU init",
        (EventKind.GPU_INIT, None, "", "0000:c1:00.0", None, ""),
    ),
    ("amdgpu: Fatal error during GPU init", (EventKind.GPU_INIT, None, "", "", None, "")),
    (
        "amdgpu 0000:c1:00.0: amdgpu: socket: 4, die: 0 1 uncorrectable hardware errors detected in total in gfx block",
        (EventKind.GPU_MEMORY_UNCORRECTED, 1, "gfx", "0000:c1:00.0", None, ""),
    ),
    (
        "amdgpu 0000:c1:00.0: amdgpu: 3 uncorrectable hardware errors detected in umc block",
        (EventKind.GPU_MEMORY_UNCORRECTED, 3, "umc", "0000:c1:00.0", None, ""),
    ),
    (
        "amdgpu 0000:c1:00.0: {17} socket: 0, die: 1, 2 new uncorrectable hardware errors detected in umc block",
        (EventKind.GPU_MEMORY_UNCORRECTED, 2, "umc", "0000:c1:00.0", None, ""),
    ),
    (
        "amdgpu 0000:c1:00.0: amdgpu: socket: 4, die: 0 3 correctable hardware errors detected in total in gfx block",
        (EventKind.GPU_MEMORY_CORRECTED, 3, "gfx", "0000:c1:00.0", None, ""),
    ),
    (
        "amdgpu 0000:c1:00.0: amdgpu: socket: 4, die: 0 3 new deferred hardware errors detected in umc block",
        (EventKind.GPU_MEMORY_DEFERRED, 3, "umc", "0000:c1:00.0", None, ""),
    ),
    (
        "amdgpu 0000:c1:00.0: amdgpu: RAS records:130 exceed threshold:128, GPU will not be initialized. Replace this GPU or increase the threshold",
        (EventKind.GPU_WORN_OUT, None, "RAS records", "0000:c1:00.0", None, ""),
    ),
    (
        "amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!",
        (EventKind.GPU_RESET, None, "", "0000:c1:00.0", None, ""),
    ),
    (
        "amdgpu 0000:c1:00.0: amdgpu: GPU reset(3) failed",
        (EventKind.GPU_RESET_FAILED, None, "GPU reset(3) failed", "0000:c1:00.0", None, ""),
    ),
    (
        "amdgpu 0000:c1:00.0: amdgpu: GPU reset end with ret = -62",
        (
            EventKind.GPU_RESET_FAILED,
            None,
            "GPU reset end with ret = -62",
            "0000:c1:00.0",
            None,
            "",
        ),
    ),
    (
        "amdgpu 0000:c1:00.0: amdgpu: device lost from bus!",
        (EventKind.GPU_LOST, None, "", "0000:c1:00.0", None, ""),
    ),
    (
        "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3",
        (EventKind.GPU_HUNG, None, "gfx_0.0.0", "", None, ""),
    ),
    (
        "amdgpu 0000:c1:00.0: [drm] *ERROR* ring sdma0 timeout, signaled seq=1, emitted seq=3",
        (EventKind.GPU_HUNG, None, "sdma0", "0000:c1:00.0", None, ""),
    ),
    (
        "amdgpu: qcm fence wait loop timeout expired",
        (EventKind.GPU_HUNG, None, "qcm", "", None, ""),
    ),
    (
        "amdgpu: The cp might be in an unrecoverable state due to an unsuccessful queues preemption",
        (EventKind.GPU_HUNG, None, "preemption", "", None, ""),
    ),
    (
        "amdgpu 0000:c1:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32770)",
        (EventKind.GPU_PAGE_FAULT, None, "gfxhub0", "0000:c1:00.0", None, ""),
    ),
    (
        "amdgpu 0000:c1:00.0: amdgpu: ERROR: GPU over temperature range(SW CTF) detected!",
        (EventKind.GPU_OVERHEATED, None, "over temperature range", "0000:c1:00.0", None, ""),
    ),
    (
        "habanalabs hl3: Device heartbeat failed! PCI link is broken",
        (EventKind.GPU_HUNG, None, "Device heartbeat failed", "hl3", None, ""),
    ),
    (
        "habanalabs hl3: Failed to detect if device is alive after reset",
        (EventKind.GPU_RESET_FAILED, None, "Failed to detect if device is alive", "hl3", None, ""),
    ),
    (
        "nvidia 0000:05:00.0: Unable to change power state from D3cold to D0, device inaccessible",
        (EventKind.PCIE_LINK_DOWN, None, "Unable to change power state", "0000:05:00.0", None, ""),
    ),
    (
        "nvidia 0000:05:00.0: can't change power state from D3cold to D0 (config space inaccessible)",
        (EventKind.PCIE_LINK_DOWN, None, "can't change power state", "0000:05:00.0", None, ""),
    ),
    (
        "mlx5_core 0000:05:00.0: not ready 65535ms after FLR; giving up",
        (EventKind.PCIE_LINK_DOWN, None, "not ready", "0000:05:00.0", None, ""),
    ),
    (
        "DMAR: [DMA Read NO_PASID] Request device [3b:00.0] fault addr 0xdeadb000 [fault reason 0x06] PTE Read access is not set",
        (EventKind.IOMMU_FAULT, None, "DMA Read", "0000:3b:00.0", None, ""),
    ),
    (
        "DMAR:[DMA Write] Request device [3b:00.0] fault addr deadb000",
        (EventKind.IOMMU_FAULT, None, "DMA Write", "0000:3b:00.0", None, ""),
    ),
    (
        "DMAR: VT-d detected Invalidation Time-out Error: SID 0",
        (EventKind.IOMMU_FAULT, None, "Invalidation Time-out Error", "", None, ""),
    ),
    (
        "AMD-Vi: Event logged [IO_PAGE_FAULT device=41:00.0 domain=0x0000 address=0xfffffffdf8000000 flags=0x0050]",
        (EventKind.IOMMU_FAULT, None, "IO_PAGE_FAULT", "0000:41:00.0", None, ""),
    ),
    (
        "nvidia 0000:41:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x000a address=0xf8000000 flags=0x0020]",
        (EventKind.IOMMU_FAULT, None, "IO_PAGE_FAULT", "0000:41:00.0", None, ""),
    ),
    (
        "AMD-Vi: Completion-Wait loop timed out",
        (EventKind.IOMMU_FAULT, None, "Completion-Wait loop timed out", "", None, ""),
    ),
    (
        "arm-smmu-v3 arm-smmu-v3.0.auto: event 0x10 received:",
        (EventKind.IOMMU_FAULT, None, "0x10", "arm-smmu-v3.0.auto", None, ""),
    ),
    (
        "arm-smmu-v3 arm-smmu-v3.0.auto: event: F_TRANSLATION client: 0009:01:00.0 sid: 0x100 ssid: 0x0 iova: 0x1 ipa: 0x0",
        (EventKind.IOMMU_FAULT, None, "F_TRANSLATION", "0009:01:00.0", None, ""),
    ),
    (
        "mce: Uncorrected hardware memory error in user-access at af34214200",
        (EventKind.MEMORY_UNCORRECTED, None, "", "", None, ""),
    ),
    (
        "neighbour: arp_cache: neighbor table overflow!",
        (EventKind.LIMIT_REACHED, None, "arp_cache", "", None, ""),
    ),
    ("Neighbour table overflow.", (EventKind.LIMIT_REACHED, None, "Neighbour table", "", None, "")),
    (
        "TCP: out of memory -- consider tuning tcp_mem",
        (EventKind.LIMIT_REACHED, None, "out of memory", "", None, ""),
    ),
    (
        "clocksource: timekeeping watchdog on CPU3: Marking clocksource 'tsc' as unstable because the skew is too large:",
        (EventKind.CLOCK_UNSTABLE, None, "tsc", "", None, ""),
    ),
    (
        "XFS (dm-3): Log I/O Error (0x2) detected at xlog_ioend_work+0x6d/0x70 [xfs] (fs/xfs/xfs_log.c:1387).  Shutting down filesystem.",
        (EventKind.FS_ERROR, None, "Log I/O Error", "dm-3", None, ""),
    ),
    (
        "XFS (dm-3): xfs_do_force_shutdown(0x2) called from line 1043 of file fs/xfs/xfs_log.c",
        (EventKind.FS_ERROR, None, "xfs_do_force_shutdown", "dm-3", None, ""),
    ),
    (
        "XFS (dm-3): Corruption of in-memory data (0x8) detected at xfs_trans_cancel+0x1/0x2 [xfs] (fs/xfs/xfs_trans.c:1).  Shutting down filesystem.",
        (EventKind.FS_ERROR, None, "Corruption", "dm-3", None, ""),
    ),
    (
        "block nvme0n1: no available path - failing I/O",
        (EventKind.NO_PATH, None, "", "nvme0n1", None, ""),
    ),
    (
        "block nvme0n1: no usable path - requeuing I/O",
        (EventKind.PATH_LOST, None, "requests wait", "nvme0n1", None, ""),
    ),
    (
        "device-mapper: multipath: 253:3: Failing path 8:16.",
        (EventKind.PATH_LOST, None, "8:16", "253:3", None, ""),
    ),
    (
        "device-mapper: multipath: Failing path 8:16.",
        (EventKind.PATH_LOST, None, "8:16", "", None, ""),
    ),
    (
        "device-mapper: multipath: queue_if_no_path timeout on 253:3, failing queued IO",
        (EventKind.NO_PATH, None, "", "253:3", None, ""),
    ),
    (
        "md/raid0md0: Disk failure on nvme1n1 detected, failing array.",
        (EventKind.STORAGE_FAULT, None, "Disk failure", "md0", None, ""),
    ),
    (
        "md/raid0:md127: Disk failure on nvme1n1 detected, failing array.",
        (EventKind.STORAGE_FAULT, None, "Disk failure", "md127", None, ""),
    ),
    (
        "md/raid1:md0: nvme1n1p2: unrecoverable I/O read error for block 3",
        (EventKind.IO_ERROR, None, "unrecoverable I/O read error", "md0", None, ""),
    ),
    (
        "ixgbe 0000:18:00.0 eno1: Fan has stopped, replace the adapter",
        (EventKind.NIC_FAULT, None, "Fan has stopped", "eno1", None, ""),
    ),
    (
        "ice 0000:18:00.0: Firmware recovery mode detected. Limiting functionality.",
        (EventKind.NIC_FAULT, None, "Firmware recovery mode", "0000:18:00.0", None, ""),
    ),
    (
        "NMI: PCI system error (SERR) for reason a1 on CPU 0.",
        (EventKind.MACHINE_CHECK, None, "PCI system error (SERR)", "", None, ""),
    ),
    (
        "md/raid1:md0: Disk failure on nvme1n1p2, disabling device.",
        (EventKind.RAID_DEGRADED, None, "raid member failed", "nvme1n1p2", None, ""),
    ),
    (
        "md/raid:md0: Cannot continue operation (2/4 failed).",
        (EventKind.STORAGE_FAULT, None, "Cannot continue operation", "md0", None, ""),
    ),
    (
        "megaraid_sas 0000:65:00.0: FW in FAULT state, Fault code:0x10000 subcode:0x0 func:megasas_wait_for_outstanding_fusion",
        (EventKind.IO_ERROR, None, "FW in FAULT state", "0000:65:00.0", None, ""),
    ),
    (
        "mpt2sas0: fault_state(0x265d)!",
        (EventKind.IO_ERROR, None, "fault_state", "mpt2sas0", None, ""),
    ),
    (
        "mpt3sas_cm0: diag reset: FAILED",
        (EventKind.STORAGE_FAULT, None, "diag reset: FAILED", "mpt3sas_cm0", None, ""),
    ),
    (
        "mpt3sas_cm0: SAS host is non-operational !!!!",
        (EventKind.STORAGE_FAULT, None, "SAS host is non-operational", "mpt3sas_cm0", None, ""),
    ),
    (
        "nvme: probe of 0000:65:00.0 failed with error -19",
        (EventKind.NVME_DOWN, None, "nvme", "0000:65:00.0", None, ""),
    ),
    (
        "lockd: server nas1 not responding, still trying",
        (EventKind.FS_REMOTE, None, "not responding", "nas1", None, ""),
    ),
    (
        "Lustre: 2449:0:(client.c:2141:ptlrpc_expire_one_request()) @@@ Request sent has timed out for slow reply: [sent 1508144508/real 1508144508]  req@ffff880eb14da700 x1570198182041824/t0(0) o250->MGC172.31.126.87@o2ib@172.31.126.87@o2ib:26/25 lens 520/544 e 0 to 1 dl 1508144563 ref 1 fl Rpc:eXN/0/ffffffff rc 0/-1",
        (EventKind.FS_REMOTE, None, "timed out for slow reply", "MGC172.31.126.87", None, ""),
    ),
    (
        "Lustre: scratch-OST0001-osc-ffff8800: Connection to scratch-OST0001 (at 10.0.0.1@o2ib) was lost; in progress operations using this service will wait for recovery to complete",
        (EventKind.FS_REMOTE, None, "was lost", "scratch-OST0001", None, ""),
    ),
    (
        "LustreError: 167-0: scratch-MDT0000-mdc-ffff8800: This client was evicted by scratch-MDT0000; in progress operations using this service will fail.",
        (EventKind.FS_REMOTE, None, "This client was evicted", "scratch-MDT0000", None, ""),
    ),
    (
        "LNetError: 105-4: Error -100 starting up LNI o2ib",
        (EventKind.FS_REMOTE, None, "starting up LNI", "o2ib", None, ""),
    ),
    (
        "LNet: 2431:0:(o2iblnd_cb.c:3174:kiblnd_check_conns()) Timed out tx for 172.31.126.87@o2ib: 403055 seconds",
        (EventKind.FS_REMOTE, None, "Timed out tx", "172.31.126.87@o2ib", None, ""),
    ),
    (
        "LNetError: 2431:0:(socklnd_cb.c:2252:ksocknal_find_timed_out_conn()) A connection with 12345-10.0.0.1@tcp (10.0.0.1:988) timed out; the network or node may be down.",
        (EventKind.FS_REMOTE, None, "timed out", "10.0.0.1@tcp", None, ""),
    ),
    (
        "beegfs: python3(1234): Messaging (RPC): Receive timed out from beegfs-storage-node1 [ID: 3] @ 10.0.0.5:8003",
        (EventKind.FS_REMOTE, None, "Receive timed out", "beegfs-storage-node1", None, ""),
    ),
    (
        "beegfs: python3(1234): NodeConn (acquire stream): Connect failed on all available routes: meta01 [ID: 1]",
        (EventKind.FS_REMOTE, None, "Connect failed on all available routes", "meta01", None, ""),
    ),
    (
        "beegfs: python3(1234): Messaging (RPC): Communication error: Node: meta01 [ID: 1] (comm result: -110; message type: 2003)",
        (EventKind.FS_REMOTE, None, "Communication error", "meta01", None, ""),
    ),
    (
        "GPFS Deadman Switch timer [0] has expired; IOs in progress: 4",
        (EventKind.FS_REMOTE, None, "Deadman Switch", "", None, ""),
    ),
    (
        "amdgpu 0000:0a:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=3295304, emitted seq=3295306",
        (EventKind.GPU_HUNG, None, "gfx_0.0.0", "0000:0a:00.0", None, ""),
    ),
    (
        "amdgpu 0000:0d:00.0: [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=1, emitted seq=3",
        (EventKind.GPU_HUNG, None, "sdma0", "0000:0d:00.0", None, ""),
    ),
    (
        "amdgpu: MES might be in unrecoverable state, issue a GPU reset",
        (EventKind.GPU_HUNG, None, "MES", "", None, ""),
    ),
    (
        "ice 0000:b1:00.0 ens801f0np0: tx_timeout: VSI_num: 6, Q 14, NTC: 0x0, HW_HEAD: 0x0, NTU: 0x0, INT: 0x4000001",
        (EventKind.NIC_HUNG, None, "tx_timeout", "ens801f0np0", None, ""),
    ),
    (
        "BUG: Bad page state in process python3  pfn:12345",
        (EventKind.BAD_PAGE, None, "Bad page state", "", None, "python3"),
    ),
    (
        "BUG: Bad page map in process python3  pte:8000 pmd:12",
        (EventKind.BAD_PAGE, None, "Bad page map", "", None, "python3"),
    ),
]

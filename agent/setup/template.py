"""The commented configuration that `rankmend agent init` writes; deploy/agent.toml is it with nothing found."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

Setting = str | int | float | Sequence[str]

_HEADER: Final = re.compile(r"\[([\w.]+)\]")
_TEXT: Final = """\
# The node agent's configuration: every key with its meaning, unit and default.
#
# A line that starts with "# " explains. A line that starts with "#" alone is a setting: remove the "#" to
# change it. The value shown is the default unless "Default" says otherwise. As it is, this file changes nothing.
#
# An unknown key, a wrong type or a value out of range stops the agent at its start with the key's
# name. After a change: `systemctl reload rankmend-agent`. Keys marked (restart) take effect at the
# next start; a reload names those that have changed. docs/operate/agent.md says more.

# Address and port of the pages. Without a host (":9476") they are open to the network: then
# set [tls], because they show every user's job names. (restart)
#listen = "127.0.0.1:9476"

# Socket on which launchers show their ranks. (restart)
# Default: /run/rankmend/agent.sock, else $XDG_RUNTIME_DIR/rankmend/agent.sock.
#socket = "/run/rankmend/agent.sock"

# This node's name in findings and alerts. (restart)
# Default: $SLURMD_NODENAME, else the host name up to its first dot.
#node = "gpu-001"

# Folder for state that outlives a restart: findings, latches, the position in the kernel log, a release of
# the GPUs. It must exist. (restart) Default: the folder that systemd makes for the service
# ($STATE_DIRECTORY), shown here; without one, nothing is kept.
#state_dir = "/var/lib/rankmend-agent"

# Shape of the log lines on standard error: "text" (key=value) or "json", an object a line. (restart)
#log_format = "text"

# Seconds between two runs of each collector not listed in [intervals_s]; 0.1 to 3600.
# Default: each collector's own interval.
#interval_s = 1.0

# Collectors to switch off, by their names in [intervals_s].
#disabled = []

# Absolute path pattern of progress files, for ranks whose launcher can't reach the socket. The agent
# needs permission to read their folders. (restart) Default: only what launchers show.
#progress_glob = "/dev/shm/rankmend-*/*/attempt-*/rank-*.progress"

# Whether jobs of other launchers are looked for that `rankmend watch env` has watched. (restart)
#watched_jobs = true

# Roots of the kernel's files. Another root is a recorded tree: the agent then ignores this
# machine's network drivers, mounts, services and root helper, but still reads GPUs and [redfish]. (restart)
#procfs = "/proc"
#sysfs = "/sys"

# Kernel log to read (needs CAP_SYSLOG where kernel.dmesg_restrict is 1). (restart)
# Default: /dev/kmsg; none if procfs is another root.
#kmsg = "/dev/kmsg"

# For tests only: also believe log lines that processes wrote, not the kernel. (restart)
#kmsg_trusts_user = false

# For drills: also take the XIDs and SXIDs that root tells by `rankmend inject`, for as long as they last. (restart)
#injected_kernel_log = false

# CSV with the site's own rows, which override the table of kernel messages: docs/reference/kernel-log.md. (restart)
# Default: the shipped table alone.
#kernel_policy = "/etc/rankmend/kernel-policy.csv"

# Socket of the root helper, which reads IPMI, SMART, transceivers and ACS: docs/reference/root-helper.md. Without
# the helper these values are absent. (restart)
# Default: the one shown.
#helper_socket = "/run/rankmend-helper/helper.sock"

# Seconds between two runs of a collector, 0.1 to 3600. The values shown are the collectors' own.
# Enabled plugins appear here under their own names, their list as "plugins" (60.0).
[intervals_s]
#ranks = 1.0
#host = 1.0
#pressure = 1.0
#disk = 10.0
#md = 10.0
#mounts = 30.0
#nfs = 10.0
#net_stack = 5.0
#bonding = 5.0
#processes = 10.0
#cgroup = 5.0
#edac = 10.0
#pcie_aer = 10.0
#clock = 5.0
#services = 30.0
#versions = 60.0
#preflight = 60.0
#pstore = 600.0
#imex = 60.0
#network = 1.0
#thermal = 10.0
# gpu is also the sampling interval of NVML, read only at the start.
#gpu = 1.0
#gpu_state = 1.0
#gpu_jobs = 5.0
#nic = 1.0
#ethernet = 1.0
#ethtool = 5.0
#transceiver = 60.0
#topology = 60.0
#rank_nics = 5.0
#planes = 5.0
#inventory = 5.0
#ipmi = 60.0
#ipmi_events = 300.0
#disk_health = 300.0
#redfish = 120.0
#kernel_log = 1.0
#agent = 5.0
#findings = 1.0

# What this host should have: docs/reference/host.md. (restart)
[host]
# Absolute paths where something must be mounted.
#mounts = []
# Shell patterns of mount points that the agent never touches.
#mounts_ignored = []
# systemd units that must run, installed or not; at most 64.
#services = []
# Kernel modules that must be loaded; at most 64.
#modules = []
# TOML file with the allowed versions of kernel, drivers and firmware. Default: nothing is compared.
#baseline = "/etc/rankmend/baseline.toml"

# Network cards: docs/reference/nic.md. Shell patterns match a device (mlx5_*), a port (mlx5_0/1) or a
# network device (eth[01]); the first match decides. (restart)
[nic]
# Devices never to open, such as limited functions of a DPU.
#exclude = []
# Virtual network devices to show anyway.
#include = []

# Network plane to patterns; planes: compute, storage, service, management, in-band, out-of-band, uplink.
# Default: guessed from the topology.
[nic.planes]
#compute = ["mlx5_[0-7]"]
#storage = ["mlx5_8", "mlx5_9"]

# Pattern to rail, 0 to 1023. Default: guessed, the order of the GPUs.
[nic.rails]
#mlx5_0 = 0

# Pattern to the expected link rate in Gbit/s. Default: the best seen on this node.
[nic.rates_gbit]
#"mlx5_[0-7]" = 400.0

# NVIDIA GPUs: docs/reference/gpu.md. (restart)
[gpu]
# Number of GPUs that this node should have, 0 to 64. Default: unknown, so none is missed.
#expected_count = 8
# Seconds after which a driver call counts as stuck and the agent abandons its process; 0.5 to 300.
#call_s_max = 10.0
# How busy SMs, tensor cores and DRAM are (GPM, Hopper and newer). false leaves the counters to a profiler.
#profiling = true
# Folder in which the site's prolog writes the jobs of each GPU, a file a GPU, as dcgm-exporter reads it.
# Default: the one shown; none if procfs is another root.
#job_map = "/var/run/nvidia/job-mapping"
# File in which kubelet keeps which pod has which GPU. Only root may read it, else pods have no series of their own.
# Default: the one shown; none if procfs is another root.
#kubelet_checkpoint = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"

# What this node should have: docs/reference/inventory.md. Less is a critical finding. Default: unknown;
# a device that vanishes or does not return after a boot is still a finding. (restart)
[expect]
# GPUs; replaces expected_count under [gpu].
#gpus = 8
# Network cards: in all, or by plane (the planes of [nic.planes]).
#nics = { compute = 8, storage = 2 }
# Built-in disks: NVMe, SATA and SAS.
#disks = 4
# Memory modules; needs the EDAC driver of the memory controller.
#dimms = 32
# GiB of memory at least, compared with MemTotal of /proc/meminfo.
#memory_gib = 2000.0

# What /metrics shows: docs/operate/agent.md. (restart)
[page]
# You already run these: "node_exporter", "dcgm-exporter". /metrics leaves out what they have; checks read it all the same.
#beside = []
# Names of other exporters under which samples are given, too: "dcgm" for the fields of dcgm-exporter's default list, so
# that its dashboards and rules work without it.
#names = []

# What counts as wrong: docs/operate/findings.md.
[findings]
# TOML with the site's own rows, which override the shipped table. Default: the shipped table alone.
#policy = "/etc/rankmend/node-policy.toml"
# Checks, or patterns of finding ids, to silence: they are shown, but no alert is sent.
#silenced = []

# Where to send findings: docs/operate/findings.md. (restart)
[alerts]
# Alertmanagers, a controller: http or https.
#urls = []
# PEM file of the authority that signed their certificates. Default: the system's authorities.
#ca_file = "/etc/rankmend/tls/ca.crt"
# PEM files of the certificate and key that the agent shows to them. Default: none.
#cert_file = "/etc/rankmend/tls/node.crt"
#key_file = "/etc/rankmend/tls/node.key"
# Absolute URL of the folder with the runbooks that alerts link to (runbook_url): your controller's console has
# them. The default only shows the form of such an address: set your own.
#runbooks = "https://controller.example:9477/docs/operate/runbooks"

# Who judges the jobs of other launchers: docs/use/watch.md. (restart)
[watch]
# The controller to which this node reports its watched jobs: http or https. It is shown the certificate of
# [alerts]. Default: nobody is told.
#controller = "https://controller.example:9477"
# Log files of a watched job, as patterns: of a job that hangs, the ends of those that its user owns are judged, and the verdict
# stands beside the controller's (docs/use/watch.md#log-files). Default: none are read.
#logs = ["/work/{user}/logs/slurm-{slurm_job}*.out"]

# This node's BMC by network: docs/reference/thermal.md. (restart)
[redfish]
# https://HOST[:PORT]; http only to this machine. Default: no BMC is asked.
#url = "https://10.0.0.17"
# TOML with user and password, readable by the agent's user alone. Needed with url, no default.
#credentials_file = "/etc/rankmend/bmc.toml"
# PEM file of the authority that signed the BMC's certificate. Default: the system's authorities.
#ca_file = "/etc/rankmend/bmc-ca.pem"
# false: the BMC's certificate is not checked.
#verify = true

# TLS 1.2 and later on the pages: docs/operate/agent.md. Default: plain HTTP. Renewed files
# are taken up by themselves; a reload turns TLS on or off.
#[tls]
# PEM files of certificate and key; both are needed, a key with a passphrase is refused.
#cert_file = "/etc/rankmend/tls/node.crt"
#key_file = "/etc/rankmend/tls/node.key"
# PEM file of an authority: only clients with its certificate are answered. Default: all clients.
#client_ca_file = "/etc/rankmend/tls/ca.crt"

# Collectors of installed packages (entry points in the group
# rankmend.collectors); at most 16: docs/reference/plugins.md. (restart)
[plugins]
# Their names; no other is loaded. A table [plugins.NAME] holds the settings of one.
#enabled = []
"""


def render(settings: Mapping[str, Setting], heading: Sequence[str] = ()) -> str:
    """Return a configuration with these settings switched on, by key: "listen", "expect.gpus".

    ``heading``: lines of a comment to begin with.
    """
    left = dict(settings)
    table, lines = "", []
    for line in _TEXT.splitlines():
        if header := _HEADER.fullmatch(line):
            table = header[1]
        name = line[1:].partition(" = ")[0] if line.startswith("#") else ""
        key = f"{table}.{name}" if table else name
        lines.append(f"{name} = {_literal(left.pop(key))}" if key in left else line)
    assert not left, f"the template has no {', '.join(left)}"
    top = "".join(f"# {line}\n" for line in heading)
    return (f"{top}#\n" if top else "") + "\n".join(lines) + "\n"


def _literal(value: Setting) -> str:
    """Return a value in TOML, whose strings take JSON's escapes (but for those beyond the BMP, which stay as they are)."""
    return json.dumps(
        value if isinstance(value, str | int | float) else list(value), ensure_ascii=False
    )

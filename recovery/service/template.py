"""The commented configuration that `rankmend controller init` writes; deploy/controller.toml is it with its defaults."""

import json
from typing import Final

# What packages bring (deploy/controller.toml).
LISTEN: Final = "127.0.0.1:9477"
STATE_DIR: Final = "/var/lib/rankmend-controller"

_TEXT: Final = """\
# The controller's configuration: every key with its meaning, unit and default.
#
# A line that starts with "# " explains. A line that starts with "#" alone is a setting with its default
# value: remove the "#" to change it.
#
# An unknown key, a wrong type or a value out of range stops the controller at its start with the
# key's name. After a change: `systemctl reload rankmend-controller`. Keys marked (restart) take
# effect at the next start. docs/operate/controller.md and docs/operate/security.md say more.

# Address and port of the API. Without a host (":9477") it is open to the network; beyond loopback
# it needs [tls] and tokens_file. (restart)
listen = @listen@

# Folder of the journals: on a local disk, never on a network file system. (restart)
state_dir = @state_dir@

# PostgreSQL for the journals of jobs and of the cluster, so that another controller can take the jobs over:
# "postgresql://USER@HOST[:PORT][,HOST...]/DATABASE[?sslmode=verify-full&sslrootcert=FILE]", without a password.
# docs/operate/postgresql.md. Default: files in state_dir. (restart)
#journal = "postgresql://rankmend@db.example/rankmend?sslmode=verify-full"

# Who may use the controller: rankmend controller token add|list|revoke. Without it anyone on this machine
# may do anything, and the controller listens on loopback only.
@tokens_file@

# Limits, budgets, approval, quarantine and which alerts count: docs/operate/controller.md.
# Default: the shipped policy.
#policy_file = "/etc/rankmend/controller/policy.toml"

# URL of the controller that took over this one's jobs: clients are redirected there.
# Default: none.
#redirect_to = "https://controller-b.example:9477"

# TLS 1.2 and later. Renewed files are taken up by themselves.
@tls@

# How the database of `journal` is used. (restart)
[postgres]
# File (mode 0600) with the password. Default: as libpq finds it (PGPASSFILE, ~/.pgpass).
#password_file = "/etc/rankmend/controller/postgresql.password"
# Start although the server may lose decisions that it has acknowledged: asynchronous commits or standbys.
#accept_loss = false
# Seconds after a controller's last sign of life until another one takes its jobs; 2 to 600.
#lease_s = 8.0
# Address of this controller, to which another one sends this one's launchers. Default: this host's name and port.
#url = "https://controller-a.example:9477"

[jobs]
# Jobs at once; each has a journal, a thread and 6 descriptors. (restart)
#at_once_max = 500
# The share of these that one subject, the name of a launch token, may have. Below 100, room is kept for
# the first job of each other subject. (restart)
#of_subject_percent = 50.0
# Days for which the journal of an ended job is kept. (restart)
#ended_kept_days = 90.0
# Seconds between two reports of a launcher; 0.1 to 60.
#report_s = 1.0

# Limits per client. Rates are per second in the long run, ten times that at once.
[limits]
# Connections at once; a launcher holds two.
#connections = 25000
# Connections of one address: enough for 500 launchers on one host. Never more than three quarters of all.
#connections_per_address = 1000
# Addresses and networks with many machines behind them, such as a proxy or NAT gateway: "10.1.2.3",
# "10.1.0.0/16". They may use all connections.
#shared_addresses = []
# Bytes of request bodies in memory at once.
#bodies_bytes = 268435456
# Reports of one node of one job.
#reports_per_node = 10.0
# Joins and polls for orders of one subject.
#launches = 2000.0
# Messages with alerts of one subject.
#alerts = 20.0
# Requests that read, and that act, of one subject.
#reads = 50.0
#acts = 5.0
# What the jobs of one subject may write into journals within a day. Above it, they start nothing new, and each of their nodes is
# listened to every 5 s.
#journal_bytes_per_day = 4294967296

# What /v1/sd/agents (http_sd) returns to Prometheus.
[discovery]
# Port of the agents at their nodes' names.
#agent_port = 9476
# Domain to append to each node's name. Default: none.
#domain = "cluster.example"
# Nodes to list whether a job uses them or not: those without a job would not be scraped otherwise.
#nodes = []
# Label `cluster` of every agent, where several clusters share a Prometheus. Default: none.
#cluster = "pool-a"
# Regular expression whose first group is the rack in a node's name: '^(r[0-9]+)-'. It becomes the label `rack`, and the console
# shows nodes by it. Default: no such label, and the console goes by names without their last number.
#rack_pattern = ""
# What nodes share: the file of `rankmend fabric topology`, with leaf switches, racks, power feeds and coolant loops, or Slurm's
# topology.conf. Spares are chosen near, copies of snapshots lie apart, and a message names the part that explains several nodes.
# Default: nothing is known but what Slurm tells the launchers.
#topology_file = "/etc/rankmend/controller/topology.json"
# Flow, temperatures and pressure of coolant units, named as the coolant loops there: docs/operate/cooling.md. Read every 15 s.
# Default: nothing is known of them.
#cooling_file = "/var/lib/rankmend-controller/cooling.json"
# Load and limits of power feeds, named as the power feeds there: docs/operate/cooling.md. Read every 15 s.
# Default: nothing is known of them.
#power_file = "/var/lib/rankmend-controller/power.json"

# Node name or shell pattern to its rack, before rack_pattern: a name counts first, then the first pattern that matches.
[discovery.racks]
#"gpu-00[0-9]" = "r01"

# Node name or shell pattern to HOST:PORT of the agent, where it is not the node's name, domain and agent_port.
# {node} stands for the name, which then must have no dot.
[discovery.addresses]
#"gpu-*" = "{node}-mgmt.example:9476"

# BMCs of the nodes, one [[bmcs]] for each pattern; the first that matches counts. With it the controller needs to
# wait for no lease when a node loses its power: it reads `PowerState` by Redfish. docs/operate/fencing.md. (restart)
#[[bmcs]]
# Node name or shell pattern.
#match = "gpu-*"
# Address; {node} stands for the node's name, which then must have no dot. Certificates are always checked.
#url = "https://{node}-bmc.example"
# TOML file (mode 0600) with user and password: a Redfish user with the role ReadOnly will do. Read anew each time.
#credentials_file = "/etc/rankmend/controller/bmc.toml"
# PEM file of the authority of the BMCs' certificates. Default: the system's authorities.
#ca_file = "/etc/rankmend/controller/bmc-ca.crt"
# Id of the node below /redfish/v1/Systems. Default: the only one there is.
#system = "1"
# Seconds for one reading; 0.1 to 10.
#timeout_s = 3.0
# Seconds between two readings of each BMC, so that people learn of one that fails before it is needed; 0: none, else
# 30 to 86400. docs/operate/controller.md
#check_s = 300.0

# Slurm: what the controller does there. docs/operate/slurm.md. (restart)
[slurm]
# Ask Slurm at all: needs scontrol, squeue, sinfo, sbatch and scancel, and a Slurm operator's rights.
#enabled = false
# Act. Without it everything is dry: journaled, shown by GET /v1/slurm, and not done.
#act = false
# What it may do then: drain nodes, requeue jobs, restart nodes, cancel jobs.
#drain = true
#requeue = true
#reboot = false
#cancel = false
# Nodes drained by rankmend at one time, as a number and as a share of Slurm's nodes; both hold.
#nodes_drained_max = 20
#nodes_drained_percent = 10.0
#drains_per_hour_max = 6
#requeues_per_hour_max = 6
#requeues_per_job_day_max = 4
# Folder of Slurm's programs. Default: the PATH.
#folder = "/opt/slurm/bin"
# Seconds for one command; 1 to 300.
#timeout_s = 20.0
# Seconds for which a job of rankmend waits for a node in its allocation, until it is requeued without the bad ones.
#requeue_after_s = 60.0
# Seconds between PENDING and the new start of a requeued job.
#pause_s = 3.0
# Seconds for which a requeued job must run to count as started, if it has written nothing.
#started_s = 10.0
# Seconds for which a job is held back whose old nodes Slurm does not hear: its ranks may still run there.
# 0: until they are proved gone.
#lost_node_wait_s = 0.0
# Return to service: the command that checks a node which rankmend has drained, and after it a burn-in. They run on this
# host, as arguments without a shell; {node} stands for the node. Exit code 0: the drain is taken back. Default: none,
# and a person returns the node.
#return_check = ["ssh", "-o", "BatchMode=yes", "{node}", "rankmend", "check", "node"]
#burn_in = ["ssh", "-o", "BatchMode=yes", "{node}", "/opt/site/burn-in"]
# Seconds for each: 1 to 3600, and 1 to 86400.
#return_check_timeout_s = 120.0
#burn_in_timeout_s = 3600.0
# Seconds from when the node is drained and empty to its first check, and from a check to the next: doubled each time,
# up to a day.
#return_after_s = 300.0
#return_pause_s = 900.0
# Nodes that are checked at once.
#return_checks_max = 4
# A node that rankmend has drained this often within these days stays out until `rankmend resume --node`. 0: no limit.
#offences_max = 3
#offence_days = 30.0

# Kubernetes: what the controller does there. docs/use/kubernetes.md. (restart)
[kubernetes]
# Ask Kubernetes at all: needs the extra `kubernetes` and the role in deploy/kubernetes/controller/rbac.yaml.
#enabled = false
# Act. Without it everything is dry: journaled, shown by GET /v1/kubernetes, and not done.
#act = false
# What it may do then: cordon nodes, evict pods of jobs that have left a node, delete those at once whose node is not heard.
#drain = true
#evict = true
#delete = true
# Take conditions and taints of other tools (Node Problem Detector, NVSentinel) on nodes of our jobs as alerts.
#signals = false
# A kubeconfig file and a context in it. Default: the service account of the controller's own pod.
#kubeconfig = "/etc/rankmend/controller/kubeconfig"
#context = "gpu-cluster"
# Nodes cordoned by rankmend at one time, as a number and as a share of the cluster's nodes; both hold.
#nodes_drained_max = 20
#nodes_drained_percent = 10.0
#drains_per_hour_max = 6
#evictions_per_hour_max = 20
# Seconds for one call; 1 to 300.
#timeout_s = 20.0
# Seconds for which a PodDisruptionBudget may forbid an eviction, and a pod may run beyond its grace period.
#evict_timeout_s = 600.0
# Return to service, as in [slurm].
#return_check = ["/opt/site/check-node", "{node}"]
#burn_in = ["/opt/site/burn-in", "{node}"]
#return_check_timeout_s = 120.0
#burn_in_timeout_s = 3600.0
#return_after_s = 300.0
#return_pause_s = 900.0
#return_checks_max = 4
#offences_max = 3
#offence_days = 30.0

# The web console at / of the same port. docs/operate/console.md.
[console]
# Serve it. (restart)
#enabled = true
# Whoever reaches the port may read everything. Acting takes a token with the role act in any case.
# Default: reading takes a token with the role read or fleet-read.
#open = false
# Address at which people reach the controller, through a proxy or by another name: messages link to URL/incidents/ID.
# Default: this host's name and the port of `listen`. (restart)
#url = "https://rankmend.example"
# Ask the agent of a blamed node for its readings when an incident opens and when it is over: the incident's page shows them.
# It is at the address that [discovery] gives.
#read_agents = true
# PEM files, where agents serve https: the authority of their certificates, and a certificate and key of ours.
# Default: http.
#agents_ca_file = "/etc/rankmend/controller/ca.crt"
#agents_cert_file = "/etc/rankmend/controller/agents.crt"
#agents_key_file = "/etc/rankmend/controller/agents.key"

# People sign in to the console at an identity provider (OpenID Connect) beside tokens. docs/operate/console.md has the steps.
#[oidc]
# The provider's address, exactly as its description names it (ISSUER/.well-known/openid-configuration).
#issuer = "https://login.example/realms/hpc"
#client_id = "rankmend"
# File (mode 0600) with the client's secret.
#client_secret_file = "/etc/rankmend/controller/oidc.secret"
# Claims of the ID token: by which name jobs, journal and audit know a person, and its groups. Choose a name that people can't
# change by themselves: with the role read a person sees the jobs of the subject of that name.
#name_claim = "preferred_username"
#groups_claim = "groups"
#scopes = ["openid", "profile"]
# On the button of the sign-in page.
#title = "single sign-on"
# Then a person signs in again, and the provider says anew which groups it is in. At most 24.
#session_hours = 8.0
# Names that may not come in: their sessions end with the reload.
#refused = []
# PEM file with the authority of the provider's certificate. Default: the system's.
#ca_file = "/etc/rankmend/controller/login-ca.crt"
# The first entry with one of a person's groups says what it may do: roles (read, fleet-read, act), and limits as of a token.
#[[oidc.groups]]
#group = "hpc-operators"
#roles = ["fleet-read", "act"]
#jobs = []
#nodes = []

# Alertmanagers: the controller notifies people through them, and at its start reads what fires, because it
# may have missed webhooks. docs/operate/alerts.md. (restart)
[alertmanagers]
# Every member of a cluster by its own address: "http://alertmanager-a:9093". Default: none, and nobody
# is notified.
#urls = []
# File (mode 0600) with a bearer token for them, read anew once it changes. Default: none.
#token_file = "/etc/rankmend/controller/alertmanager.token"
# PEM files: the authority of their certificates, and a certificate and key of ours.
# Read anew once they change. Default: the system's authorities, and no certificate.
#ca_file = "/etc/rankmend/controller/alertmanager-ca.crt"
#cert_file = "/etc/rankmend/controller/alertmanager.crt"
#key_file = "/etc/rankmend/controller/alertmanager.key"
# Name of this controller's receiver in their configuration: it reads only what is routed there.
# Default: everything that fires.
#receiver = "rankmend-controller"
# Absolute URL of the folder with the runbooks that alerts link to. Default: this console's own pages, at
# [console] url.
#runbooks = "https://controller.example:9477/docs/operate/runbooks"
"""

_TOKENS_OFF: Final = '#tokens_file = "/etc/rankmend/controller/tokens.toml"'
_TLS_OFF: Final = """\
#[tls]
# PEM files of certificate and key; both are needed, a key with a passphrase is refused.
#cert_file = "/etc/rankmend/controller/server.crt"
#key_file = "/etc/rankmend/controller/server.key"
# PEM file of the authority of the nodes' certificates, by which agents prove which node they are on.
# Default: no certificate is accepted.
#client_ca_file = "/etc/rankmend/controller/ca.crt\""""


def is_as_shipped(text: str) -> bool:
    """Return whether a configuration is the one that packages bring: nobody has set up a controller with it yet."""
    return text == render(LISTEN, STATE_DIR, tls=None)


def render(
    listen: str, state_dir: str, *, tokens_file: str | None = None, tls: tuple[str, str, str] | None
) -> str:
    """Return a configuration; ``tls``: certificate, key, authority of the nodes."""
    tls_text = _TLS_OFF
    if tls is not None:
        for name, path in zip(("cert_file", "key_file", "client_ca_file"), tls, strict=True):
            head, _found, rest = tls_text.partition(f"#{name} = ")
            tls_text = f"{head}{name} = {json.dumps(path)}{rest[rest.find(chr(10)) :] if chr(10) in rest else ''}"
        tls_text = tls_text.removeprefix("#")
    tokens = _TOKENS_OFF if tokens_file is None else f"tokens_file = {json.dumps(tokens_file)}"
    return (
        _TEXT.replace("@listen@", json.dumps(listen))
        .replace("@state_dir@", json.dumps(state_dir))
        .replace("@tokens_file@", tokens)
        .replace("@tls@", tls_text)
    )

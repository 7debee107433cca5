#!/bin/sh
# Prolog= of slurm.conf: keeps a job off a node with a fault (docs/operate/node-checks.md).
# Slurm drains a node whose prolog fails. So only exit code 3 counts, which names a fault: a missing program,
# a crash or a timeout lets the job start.
timeout -k 1 10 /opt/rankmend/bin/rankmend check node --for prolog --config /etc/rankmend/agent.toml
[ $? -ne 3 ]

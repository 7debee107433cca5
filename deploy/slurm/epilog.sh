#!/bin/sh
# Epilog= of slurm.conf: removes what the job left on this node, and checks the node for the next one
# (docs/operate/node-checks.md). The job is named by SLURM_JOB_ID and SLURM_JOB_UID, which slurmd sets.
timeout -k 1 30 /opt/rankmend/bin/rankmend cleanup
timeout -k 1 10 /opt/rankmend/bin/rankmend check node --for epilog --config /etc/rankmend/agent.toml
[ $? -ne 3 ]

#!/bin/sh
# HealthCheckProgram= of slurm.conf: drains this node for a fault (docs/operate/node-checks.md).
timeout -k 1 10 /opt/rankmend/bin/rankmend check node --for health --config /etc/rankmend/agent.toml
exit 0

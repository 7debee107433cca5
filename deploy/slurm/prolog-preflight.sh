#!/bin/sh
# Prolog= of slurm.conf, in place of prolog.sh: puts the node under load for at most 60 s (docs/use/preflight.md).
# Set PrologEpilogTimeout=120 or more. Without --act nothing keeps a job off: look at slurmd's log for some days first.
# Root runs the interpreter behind --python: name one that only root can change.
# Slurm drains a node whose prolog fails. So only exit code 3 counts, which names a fault.
timeout -k 5 90 /opt/rankmend/bin/rankmend preflight quick --for prolog --hold slurm \
    --baseline /etc/rankmend/preflight-baseline.json --config /etc/rankmend/agent.toml
[ $? -ne 3 ]

"""What a Slurm job has left on a node: found by root, removed with the rights of the job's user."""

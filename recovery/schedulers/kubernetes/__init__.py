"""Kubernetes, as the controller asks it and acts on it: a second manager of nodes beside `recovery.schedulers.slurm`, whose desk it uses."""

"""Slurm, as the controller asks it and acts on it."""

"""The soak: a job that trains under random faults for a long time, while rankmend's own processes are measured."""

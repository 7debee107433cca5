"""`rankmend drill`: a job, a schedule of faults and what must hold, and whether it held."""

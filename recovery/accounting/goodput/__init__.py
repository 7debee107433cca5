"""Where the time of jobs went, and what follows from it: goodput, MTBF, MTTR, lost GPU-hours."""

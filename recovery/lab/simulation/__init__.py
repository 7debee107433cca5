"""A job of thousands of nodes under a simulated clock, for months, by the real rules of recovery.

Faults, times and machines are drawn or assumed; what is done about a fault is decided by the code that decides in production:
the ledger and its fold, the planner, the choice of checkpoints and nodes, the cluster's budgets and quarantine.
"""

"""Three controllers on one PostgreSQL under drawn faults, and a checker over all that was written and seen."""

"""Pre-flight checks: what is measured, how long it may take, and what the figures mean."""

"""The controller's state on PostgreSQL: journals, jobs and leases. docs/internals/design/0008-postgresql.md says why."""

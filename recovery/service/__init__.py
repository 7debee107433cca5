"""The controller as a service: HTTP in front, one thread that decides for all jobs behind it."""

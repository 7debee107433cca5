"""The matrix of drills: kinds of faults, each in every phase of a job."""

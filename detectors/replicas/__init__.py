"""Replicas that ought to be equal and differ: silent corruption of a rank's memory or arithmetic."""

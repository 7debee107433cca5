"""Losses and gradient norms that went wrong."""

"""The part of rankmend that runs inside the training process.

Standard library and Python 3.8 only, no thread, no socket; nothing here raises into training.
"""

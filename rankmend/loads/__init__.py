"""Loads of `rankmend preflight`: what computes, copies and writes, under the user's own Python (3.8 and later).

They import the standard library, PyTorch and NumPy where these are there, and nothing else of rankmend. Each module has
``run(spec, tell)``: ``spec`` is a table from the plan, ``tell`` prints one line of JSON. They judge nothing.
"""

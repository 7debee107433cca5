"""What a look at PyTorch's and the script's objects may raise.

Never all of Exception: a signal handler of the script (a time limit, say) may raise its own in the middle of our code.
"""

OWN_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

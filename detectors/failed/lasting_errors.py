"""Errors that come again at each start, whatever machine it is on. Pure."""

import re
from typing import Final

from detectors.failed.error_classes import classify
from detectors.failed.error_text import ErrorText, first_line, read_parts
from detectors.failed.outages import OUTAGE
from detectors.failed.said_error import FailureCause

# Errors that the text of the program alone decides: the same at each start, whatever it reads.
_OF_TEXT: Final = re.compile(
    r"^(?:SyntaxError|IndentationError|TabError|NameError|UnboundLocalError|ModuleNotFoundError|ImportError)\b"
)
_OF_CODE: Final = re.compile(
    r"^(?:[\w.]+\.)?(?:TypeError|AttributeError|NotImplementedError|KeyError|ValueError|IndexError|LookupError|AssertionError|StopIteration"
    r"|ZeroDivisionError|OverflowError|FloatingPointError|RecursionError|ValidationError|ArgumentError|\w*Config\w*(?:Error|Exception)"
    r"|Interpolation\w*Error|YAMLError|ScannerError|ParserError)\b"
)
# What PyTorch says of tensors that don't fit each other. Sources: aten/src/ATen/native/LinearAlgebra.cpp,
# ExpandUtils.h, TensorIterator.cpp, Convolution.cpp; torch/csrc/autograd/engine.cpp.
_OF_SHAPES: Final = re.compile(
    r"^RuntimeError: (?:mat1 and mat2 |The size of tensor a |The expanded size of the tensor |Expected all tensors to be on the same device"
    r"|[Ee]xpected (?:scalar type|object of|input|\d+D|a ).{0,60}but |Sizes of tensors must match|shape '\[[-\d, ]*\]' is invalid for input"
    r"|Given groups=|Given normalized_shape|element 0 of tensors does not require grad|size mismatch|Tensors must have same number of dimensions"
    r"|Boolean value of Tensor|a leaf Variable that requires grad|Trying to backward through the graph a second time|stack expects each tensor)"
)
# As argparse says, which ends with code 2. Source: Lib/argparse.py.
_USAGE: Final = re.compile(
    r"^\S+\.py: error: (?:unrecognized arguments|the following arguments are required|argument |ambiguous option|one of the arguments|too few arguments)"
    r"|^Error: (?:No such (?:option|command)|Missing (?:argument|option|parameter)|Invalid value for|Got unexpected extra argument|Option '[^']+' (?:requires|does not))"
)
_OF_FILES: Final = re.compile(
    r"(?m)^(?:[\w.]+\.)?(?:OSError|IOError|EnvironmentError|FileNotFoundError|FileExistsError|PermissionError|NotADirectoryError|IsADirectoryError"
    r"|BlockingIOError|ChildProcessError|ProcessLookupError|InterruptedError|Connection\w*Error|BrokenPipeError|TimeoutError|timeout|gaierror)\b|\[Errno \d+\]"
)
# As hydra refuses an override, without a traceback. Source: hydra/_internal/config_loader_impl.py, utils.py.
_HYDRA: Final = re.compile(
    r"^(?:Could not (?:override|append|delete) |Key '[^']+' is not in struct|In '[^']+': Could not find|Primary config |You must specify '|Error merging |Cannot find primary config|Ambiguous value for argument|mismatched input |no viable alternative|token recognition error|LexerNoViableAltException)"
)
# What a node can lack. Source: glibc's elf/dl-load.c and dl-lookup.c.
_OF_LIBRARIES: Final = re.compile(
    r"cannot open shared object file|undefined symbol|symbol lookup error|DLL load failed|invalid ELF header|wrong ELF class|file too short"
    r"|failed to map segment|cannot allocate memory in static TLS|cannot enable executable stack|version `[\w.]+' not found|\.so(?:\.\d+)*\b"
)
_OF_MACHINES: Final = re.compile(
    r"(?i)\b(?:cuda|cudnn|nccl|gpus?|nvml|nvidia|hip|rocm|driver|devices?)\b"
)
# What was read may be whole at the next start: a path that a later mount has, an empty file.
_OF_INPUT: Final = re.compile(
    r"(?:^|[\s'\"(=:])(?:~|\.{0,2})/[\w.-]+|\b\w+://|: (?:''|\"\"|b'')$|char 0\)|(?i:\bempty\b|\bgot num_samples=0\b|\bno (?:files?|shards?|samples?|data)\b)"
)


def comes_again(error: ErrorText, *, has_state: bool) -> bool:
    """Return whether an error that every rank had before its first step comes again at each start.

    ``has_state``: the ranks began from a checkpoint, which may be what is wrong: then only an error in the program's
    text does. A library that can't be loaded, an error of files and one that names a path or empty input never do: those can be a
    node's or a storage's.
    """
    parts = read_parts(error)
    statements = [part.statement for part in parts]
    first = first_line(parts[0])
    if any(_OF_FILES.search(text) or _OF_LIBRARIES.search(text) for text in statements):
        return False
    if _OF_TEXT.search(first):
        return True
    if has_state or classify(error) not in (FailureCause.PROGRAM, FailureCause.EXCEPTION):
        return False
    if any(
        OUTAGE.search(text) or _OF_MACHINES.search(text) or _OF_INPUT.search(text)
        for text in statements
    ):
        return any(pattern.search(first) for pattern in (_OF_SHAPES, _USAGE, _HYDRA))
    patterns = (_OF_CODE, _OF_SHAPES, _USAGE, _HYDRA)
    return any(pattern.search(first) for pattern in patterns)

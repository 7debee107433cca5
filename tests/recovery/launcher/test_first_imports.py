"""The imports at the head of a script, which the fork server of its first run follows."""

from pathlib import Path

import pytest

from recovery.launcher.ranks.rank_imports import SCRIPT_BYTES_MAX, first_imports, read_first_imports


def names_of(text: str, own: tuple[str, ...] = ()) -> list[str]:
    return [name for name, _parts in first_imports(text, lambda name: name in own)]


def test_imports_and_what_is_taken_from_them_are_read() -> None:
    text = '''"""Trains."""
from __future__ import annotations
import os, numpy as np
import torch.nn.functional as F
from torch import nn, distributed as dist
from math import *
'''

    assert first_imports(text, lambda _name: False) == (
        ("os", ()),
        ("numpy", ()),
        ("torch.nn.functional", ()),
        ("torch", ("nn", "distributed")),
        ("math", ()),
    )


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['TOKENIZERS_PARALLELISM'] = 'false'",
        "sys.path.insert(0, 'src')",
        "try:\n    import torch\nexcept ImportError:\n    pass",
        "if True:\n    import torch",
        "import own",
        "from own.model import Net",
        "from . import model",
        "DEVICE = 'cpu'",
        "def main():\n    pass",
    ],
)
def test_the_first_line_that_may_do_more_ends_the_list(line: str) -> None:
    text = f"import os, numpy\n{line}\nimport torch\n"

    assert names_of(text, own=("own",)) == ["os", "numpy"]


def test_a_script_that_begins_with_imports_of_pythons_own_has_no_list() -> None:
    assert names_of("import os, sys\nimport json.decoder\n") == []


def test_the_hook_itself_is_no_import_of_the_script() -> None:
    assert names_of("import rankmend\nimport numpy\n") == ["numpy"]


@pytest.mark.parametrize(
    ("text", "is_listed"),
    [
        ("import torch\nopt = torch.optim.SGD([])\n", True),
        ("import torch, os\nRANK = os.environ['RANK']\nopt = torch.optim.SGD([])\n", True),
        ("import torch, os\nX = os.environ.get('X')\nopt = torch.optim.SGD([])\n", True),
        ("import torch, os\nif 'X' in os.environ:\n    torch.optim.SGD([])\n", True),
        ("import torch, os\ntorch.optim.SGD([])\nos.environ.update(a='b')\n", False),
        ("import torch\n", False),
        ("import numpy\noptim = 1\n", False),
        ("import torch\nimport os\nos.environ['TORCH_LOGS'] = 'x'\ntorch.optim.SGD([])\n", False),
        ("import torch\nimport os\nos.putenv('TORCH_LOGS', 'x')\ntorch.optim.SGD([])\n", False),
    ],
)
def test_what_the_first_optimizer_imports_is_listed_unless_the_script_sets_variables(
    text: str, is_listed: bool
) -> None:
    assert ("torch._dynamo" in names_of(text)) is is_listed


def test_a_module_beside_the_script_is_its_own_even_with_the_name_of_a_package(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import tqdm\nimport numpy\nimport torch\n")
    (tmp_path / "numpy").mkdir()

    assert read_first_imports(script) == (("tqdm", ()),)


@pytest.mark.parametrize(
    "content", [b"import os\nthis is no Python", b"\xff\xfe", b"x" * (SCRIPT_BYTES_MAX + 1)]
)
def test_a_script_that_can_not_be_read_has_no_list(tmp_path: Path, content: bytes) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(content)

    assert read_first_imports(script) == ()
    assert read_first_imports(tmp_path / "absent.py") == ()

"""Errors in files of settings name the file, the line, the key and the value."""

from pathlib import Path

import pytest

from rankmend.errors import ConfigError
from rankmend.toml_file import find_line
from recovery.controller.cluster.cluster_limits_file import read_policy_file
from recovery.launcher.run.options import read_policy

JOBS = """\
[[jobs]]
match = "a"
[jobs.policy]
restarts_max = 1

[[jobs]]
match = "b"   # [not.a.table]
[jobs.policy]
restarts_max = "two"
"""


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "# first\n\n[policy]\nrestart_max = 3\n",
            ", line 4: [policy]: unknown key 'restart_max';",
        ),
        ("[polcy]\n", ", line 1: the file: unknown key 'polcy'; known:"),
        (
            '[hang]\nfloor_s = 20\n[policy]\n  settle_s = "fast"\n',
            ", line 4: [policy] settle_s is 'fast': Expected `float`, got `str`",
        ),
        (
            "[policy]\nrestarts_max = 1.5\n",
            ", line 2: [policy] restarts_max is 1.5: Expected `int`",
        ),
        ("[policy]\n[hang]\nfloor_s = -1\n", ", line 2: [hang] hung limit floor_s is -1"),
        ("policy.restarts_max = true\n", ", line 1: [policy] restarts_max is True: Expected `int`"),
        ("hang = 3\n", ", line 1: hang is 3, not a table"),
        (
            "[policy.allow]\nhost = ['fly']\n",
            ", line 1: [policy] allow is {'host': ['fly']}: Invalid",
        ),
        (
            "[policy\n",
            " is not valid TOML: Expected ']' at the end of a table declaration (at line 1",
        ),
    ],
)
@pytest.mark.parametrize("read", [read_policy, read_policy_file])
def test_mistake_is_told_with_its_line_and_value(
    tmp_path: Path, read: object, text: str, error: str
) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(text)

    with pytest.raises(ConfigError) as told:
        read(path)  # type: ignore[operator]

    assert str(told.value).startswith(f"{path}{error}")


def test_mistake_in_one_of_several_tables_is_told_with_the_line_in_that_one(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(JOBS)

    with pytest.raises(ConfigError) as told:
        read_policy_file(path)

    assert str(told.value).startswith(
        f"{path}, line 9: [[jobs]] number 2: [policy] restarts_max is 'two': Expected `int`"
    )


def test_line_of_a_key_inside_an_inline_table_is_the_line_of_the_table() -> None:
    text = 'a = 1\npolicy = { restarts_max = "x" }\n'

    assert find_line(text, ("policy", "restarts_max")) == 2
    assert find_line(text, ("nowhere",)) is None


def test_file_without_mistakes_gives_the_same_limits_for_a_run_and_for_a_controller(
    tmp_path: Path,
) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("[policy]\nrestarts_max = 7\nsettle_s = 1\n[hang]\nfloor_s = 20\n")

    policy = read_policy(path)

    assert (policy.restarts_max, policy.settle_s, policy.hung.floor_s) == (7, 1.0, 20.0)
    assert policy == read_policy_file(path).policy

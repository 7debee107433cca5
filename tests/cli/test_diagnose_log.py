"""`rankmend diagnose log`: files, folders, gzip, standard input, secrets, exit codes."""

import gzip
import json
from pathlib import Path

from click.testing import CliRunner, Result

from rankmend.cli import cli

NAME = b"""[rank1]: Traceback (most recent call last):
[rank1]:   File "/w/train.py", line 3, in <module>
[rank1]:     go()
[rank1]: NameError: name 'modle' is not defined
"""
LOST = b"""[rank0]: Traceback (most recent call last):
[rank0]:   File "/w/train.py", line 3, in <module>
[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.4]:44
"""


def diagnose(*args: object, data: bytes | None = None) -> Result:
    return CliRunner().invoke(cli, ["diagnose", "log", *map(str, args)], input=data)


def test_exit_code_is_the_decision(tmp_path: Path) -> None:
    codes = {}
    for name, text in (
        ("stop", NAME),
        ("restart", LOST),
        ("unknown", b"step 1 loss 2.5\nstep 2 loss 2.4\n"),
        ("other", b"lorem ipsum\n" * 9),
    ):
        file = tmp_path / name
        file.write_bytes(text)
        codes[name] = diagnose(file).exit_code

    assert codes == {"stop": 3, "restart": 0, "unknown": 4, "other": 64}


def test_json_has_the_agreed_fields() -> None:
    result = diagnose("-", "--json", data=NAME + LOST)

    page = json.loads(result.output)
    assert page["decision"] == "stop"
    assert page["class"] == "program"
    assert page["kind"] == "name_error"
    assert page["culprit_ranks"] == [1]
    assert page["culprit_nodes"] == []
    assert page["victims"] == [0]
    assert page["evidence"][0] == {
        "file": "standard input",
        "line": 4,
        "text": "[rank 1] NameError: name 'modle' is not defined",
    }


def test_folder_of_packed_and_plain_files_is_one_job(tmp_path: Path) -> None:
    folder = tmp_path / "attempt_0"
    for rank, text in enumerate((LOST.replace(b"[rank0]: ", b""), NAME.replace(b"[rank1]: ", b""))):
        (folder / str(rank)).mkdir(parents=True)
        (folder / str(rank) / "stderr.log.gz").write_bytes(gzip.compress(text))
        (folder / str(rank) / "stdout.log").write_bytes(b"")

    result = diagnose(tmp_path, "--json")

    page = json.loads(result.output)
    assert (page["culprit_ranks"], page["victims"]) == ([1], [0])
    assert page["evidence"][0]["file"] == "attempt_0/1/stderr.log.gz"


def test_packed_standard_input_is_read() -> None:
    assert diagnose("-", data=gzip.compress(NAME)).exit_code == 3


def test_truncated_gzip_is_judged_as_far_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_bytes(NAME)
    (tmp_path / "rest.log.gz").write_bytes(gzip.compress(LOST * 2_000)[:-20])

    result = diagnose(tmp_path)

    assert result.exit_code == 3
    assert "not read: the end of rest.log.gz: its compressed data is truncated" in result.output


def test_secrets_and_home_folders_are_taken_out_of_quotes(tmp_path: Path) -> None:
    file = tmp_path / "job.log"
    file.write_bytes(NAME.replace(b"'modle'", b"hf_abcdefghijklmnopqrst at /home/bob/x"))

    for arguments in ((file,), (file, "--json")):
        output = diagnose(*arguments).output

        assert "hf_abcdef" not in output
        assert "bob" not in output


def test_unreadable_input_ends_with_exit_code_2(tmp_path: Path) -> None:
    result = diagnose(tmp_path / "none.log")

    assert result.exit_code == 2
    assert "no such file" in result.output


def test_device_that_may_have_no_end_is_refused_and_an_empty_one_is_read() -> None:
    refused = diagnose("/dev/zero")

    assert refused.exit_code == 2
    assert "cannot read /dev/zero: it is a device" in refused.output
    assert diagnose("/dev/null").exit_code == 64

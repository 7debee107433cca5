"""What the hook records of a group of exceptions."""

from typing import Any

from rankmend.hook import uncaught

HOOK: Any = uncaught  # it has no types


def test_record_of_a_group_names_the_first_of_its_exceptions_as_the_cause() -> None:
    parts = {"exceptions": (ValueError("bad sample 7"), KeyError("a")), "__module__": "builtins"}
    group = type("ExceptionGroup", (Exception,), parts)  # Python 3.10 has none

    chain = HOOK._chain(group("two failed"), None)

    assert [(part["type"], part["link"]) for part in chain] == [
        ("ExceptionGroup", "cause"),
        ("ValueError", "context"),
    ]


def test_record_of_any_other_exception_with_parts_has_none_of_them() -> None:
    error = ValueError("x")
    error.exceptions = (KeyError("a"),)  # type: ignore[attr-defined]

    assert [part["type"] for part in HOOK._chain(error, None)] == ["ValueError"]

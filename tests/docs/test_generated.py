"""The generated parts of the documentation are what the code declares."""

import pytest

from docs.generate import PARTS, ROOT, replace_part


@pytest.mark.parametrize(("page", "name"), PARTS)
def test_generated_part_is_what_the_code_declares(page: str, name: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")

    assert replace_part(text, name, PARTS[page, name]()) == text, "run make docs"


def test_a_page_that_lost_its_marks_is_refused_by_the_name_of_the_part() -> None:
    with pytest.raises(ValueError, match="<!-- checks -->"):
        replace_part("# Checks\n", "checks", "")

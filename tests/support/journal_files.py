"""Files of journals, changed as nothing but damage changes them."""

import sqlite3
from pathlib import Path


def change(path: Path, statement: str, *values: object) -> None:
    """Change a journal's file behind its back."""
    connection = sqlite3.connect(path)
    connection.execute(statement, values)
    connection.commit()
    connection.close()

"""Makes `agent` importable, which an installed rankmend has where only its own programs look."""

from rankmend.parts_path import put_on_path

put_on_path()

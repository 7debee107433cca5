"""Where the Python code of one rank stands: the frames of its threads."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """One call of a stack."""

    file: str
    line: int
    function: str

    @property
    def text(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """The Python calls of one thread, the innermost first."""

    title: str
    frames: tuple[Frame, ...]

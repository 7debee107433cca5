"""What a rank tells of the communication and reading beside its own work, in its progress file and in reports."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToldHidden:
    """What ran beside a rank's own work since it attached, in all, and by what that is known (docs/reference/goodput.md)."""

    has_replica: bool = False  # DistributedDataParallel reduces gradients
    has_untimed: bool = False  # there were collectives whose end nobody sees
    loads_itself: bool = False  # the thread that trains makes batches of a data loader
    loads_in_workers: bool = False  # other processes make them
    works: int = 0  # asynchronous collectives that were timed
    works_least_s: float = 0.0  # in flight beside the rank's own work: at least, at most
    works_most_s: float = 0.0
    samples: int = 0  # iterations that DistributedDataParallel has told of
    window_s: float = 0.0  # in these, from the first bucket to the end
    overlap_s: float = 0.0  # the part of it in which backward still computed
    reads: int = 0  # that the script has told in other threads
    reads_s: float = 0.0
    sendings: int = 0  # communication, the same
    sendings_s: float = 0.0

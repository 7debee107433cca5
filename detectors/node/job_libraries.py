"""Jobs whose ranks have not all loaded the same NCCL: other images, environments or LD_LIBRARY_PATH on some of their nodes. Pure.

Ranks of two versions can't form a communicator (NCCL ends it: "Mismatched NCCL version detected"), unless it lies among those of one
version alone. Jobs may well differ from each other: each is held against itself, and only what its newest attempt has told counts.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from detectors.wording import counted, names_in_words, ranks_in_words


@dataclass(frozen=True, slots=True)
class RankLibrary:
    """What one rank has loaded."""

    node: str
    job_id: str
    job_name: str
    attempt: int
    rank: int
    versions: tuple[str, ...]  # usually one


@dataclass(frozen=True, slots=True)
class LibraryShare:
    """The ranks of a job that have loaded the same."""

    version: str
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MixedJob:
    job_id: str
    job_name: str
    shares: tuple[LibraryShare, ...]  # the one with most ranks first

    def in_words(self) -> str:
        name = f"{self.job_name} ({self.job_id})" if self.job_name else self.job_id
        return (
            f"job {name} has loaded {len(self.shares)} versions of NCCL: {say_shares(self.shares)}"
        )


def say_shares(shares: Iterable[LibraryShare]) -> str:
    """Return who has loaded what."""
    return "; ".join(
        f"{share.version} in {ranks_in_words(share.ranks)} on {counted(len(share.nodes), 'node')} ({names_in_words(share.nodes)})"
        for share in shares
    )


def find_mixed_jobs(ranks: Iterable[RankLibrary]) -> list[MixedJob]:
    """Return the jobs whose ranks differ, ordered by job. Ranks that tell of no NCCL have no part in it."""
    jobs: dict[str, list[RankLibrary]] = {}
    for rank in ranks:
        if rank.versions:
            jobs.setdefault(rank.job_id, []).append(rank)
    mixed = []
    for job_id, reported in sorted(jobs.items()):
        newest = max(item.attempt for item in reported)
        shares: dict[str, list[RankLibrary]] = {}
        for item in reported:
            if item.attempt == newest:
                shares.setdefault(" and ".join(sorted(set(item.versions))), []).append(item)
        if len(shares) > 1:
            ordered = sorted(shares.items(), key=lambda share: (-len(share[1]), share[0]))
            mixed.append(
                MixedJob(job_id, reported[0].job_name, tuple(_share(*share) for share in ordered))
            )
    return mixed


def _share(version: str, of: list[RankLibrary]) -> LibraryShare:
    nodes = tuple(sorted({library.node for library in of}))
    return LibraryShare(version, nodes, tuple(sorted({library.rank for library in of})))

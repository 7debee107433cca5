"""Where a job's ranks stand, as the API and the console show it. Pure."""

from recovery.api import wire
from recovery.job.rank_picture import RankPicture


def view_ranks(job_id: str, picture: RankPicture | None) -> wire.RankMap:
    """Return the ranks of a picture; None: nothing runs."""
    if picture is None:
        return wire.RankMap(job_id, 0, None, [], [], [], [], [], [], [])
    places: dict[str, int] = {}
    nodes = [places.setdefault(node, len(places)) for node in picture.nodes]
    return wire.RankMap(
        job_id,
        picture.attempt,
        picture.step_s,
        list(places),
        list(picture.ranks),
        nodes,
        list(picture.steps),
        [None if age_s is None else round(age_s, 1) for age_s in picture.ages_s],
        [state.value for state in picture.states],
        [None if factor is None else round(factor, 3) for factor in picture.factors],
    )

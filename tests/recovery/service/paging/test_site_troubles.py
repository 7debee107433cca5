"""People are told once when the readings of a site's units no longer come, and again when they do."""

from dataclasses import replace

from detectors.parts.cooling import CoolingReading, judge_cooling
from detectors.parts.fleet_parts import NO_PARTS
from detectors.parts.power_feeds import PowerReading, judge_power
from detectors.parts.site_units import COOLANT_UNIT, POWER_FEED, STALE_S, UnitVerdict
from recovery.service.paging.alerts import Links, alerts_of, ended_alerts_of
from recovery.service.paging.causes import FINDING_WAIT_S, RELISTEN_S, CauseChanges
from recovery.service.paging.site_troubles import SiteFile, readings_troubles
from recovery.service.paging.trouble import PresentTrouble
from tests.support.troubles import NOW, Site

LINKS = Links("https://wiki/runbooks", "https://console")
COOLING = tuple(CoolingReading(f"cdu-{at}", NOW) for at in range(3))
POWER = (PowerReading("pdu-a7", NOW),)
FILES = {COOLANT_UNIT: SiteFile("/srv/cooling.json"), POWER_FEED: SiteFile("/srv/power feeds.json")}


def verdicts(now_unix_s: float, fresh: tuple[str, ...] = ()) -> list[UnitVerdict]:
    """Return the verdicts on all units, of which only the fresh are read again."""
    cooling = [
        replace(one, read_unix_s=now_unix_s) if one.unit in fresh else one for one in COOLING
    ]
    power = [replace(one, read_unix_s=now_unix_s) if one.feed in fresh else one for one in POWER]
    return [
        *judge_cooling(cooling, (), (), NO_PARTS, now_unix_s),
        *judge_power(power, (), (), NO_PARTS, now_unix_s),
    ]


class Watched:
    """What people are told while the readings come and stay away."""

    def __init__(self) -> None:
        self.site = Site()
        self.since: dict[str, float] = {}

    def look(
        self, *fresh: str, after_s: float = FINDING_WAIT_S, listened_s: float = 1e6
    ) -> CauseChanges:
        now_s = self.site.now_s + after_s
        found = list(readings_troubles(verdicts(now_s, fresh), FILES, now_s, self.since))
        self.since = {one.key: one.since_unix_s for one in found}
        return self.site.look(*found, after_s=after_s, listened_s=listened_s)


def test_stale_readings_of_all_units_are_one_message_that_ends_when_they_come_again() -> None:
    watched = Watched()

    in_order = watched.look(after_s=STALE_S).open
    too_early = watched.look(after_s=1).open
    (told,) = watched.look().open
    (fewer,) = watched.look("cdu-0").open
    over = watched.look("cdu-0", "cdu-1", "cdu-2", "pdu-a7")
    ((again),) = [watched.look(after_s=STALE_S), watched.look()][-1].open
    (alert,), (ended,) = alerts_of([told], LINKS), ended_alerts_of(over.closed, LINKS)

    assert (in_order, too_early, over.open) == ((), (), ())
    assert alert.labels["incident"] == ended.labels["incident"] == "site-readings"
    assert (alert.labels["severity"], again.told.cause_id) == ("warning", told.told.cause_id)
    assert alert.annotations["what"] == (
        "no reading of 3 coolant units (cdu-0, cdu-1, cdu-2) in the last 10 min; "
        "no reading of 1 power feed (pdu-a7) in the last 10 min"
    )
    assert alert.annotations["summary"].startswith("cluster: restore the readings; no reading of 3")
    assert alert.annotations["next"] == "rankmend check cooling /srv/cooling.json"
    assert alert.annotations["runbook_url"].endswith("/controller.md#rankmendsitereadings")
    assert "2 coolant units (cdu-1, cdu-2)" in fewer.troubles[0].what
    assert ended.annotations["state"] == "over"


def test_a_controller_that_starts_anew_sends_no_second_message_and_waits_before_it_ends_one() -> (
    None
):
    watched = Watched()
    watched.look(after_s=STALE_S + 1)
    (before,) = watched.look().open
    watched.since = {}

    (after,) = watched.look(listened_s=1).open
    still = watched.look("cdu-0", "cdu-1", "cdu-2", "pdu-a7", listened_s=RELISTEN_S - 1)
    over = watched.look("cdu-0", "cdu-1", "cdu-2", "pdu-a7", listened_s=RELISTEN_S)

    assert after.told.cause_id == before.told.cause_id
    assert after.told.since_unix_s == before.told.since_unix_s
    assert (len(still.open), len(over.open), len(over.closed)) == (1, 0, 1)


def troubles(files: dict[object, SiteFile[object]]) -> list[PresentTrouble]:
    return list(readings_troubles([], files, NOW, {}))  # type: ignore[arg-type]


def test_a_file_that_cannot_be_read_is_told_with_the_reason_and_the_command_quotes_its_name() -> (
    None
):
    broken = replace(FILES[POWER_FEED], problem="cannot read /srv/power feeds.json: gone")

    (one,) = troubles({**FILES, POWER_FEED: broken})

    assert one.what == "nothing is known of power feeds: cannot read /srv/power feeds.json: gone"
    assert one.command == "rankmend check power '/srv/power feeds.json'"
    assert troubles({**FILES}) == []

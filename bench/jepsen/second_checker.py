"""The second checker: the standard library, the text of a history, and the rules as docs/operate/postgresql.md and fencing.md say them.

    python -I bench/jepsen/second_checker.py HISTORY.jsonl

It shares no code with `checker.py`, nor with rankmend: it decodes no record into rankmend's types and folds nothing with its
fold. It prints JSON: what it read, and each violation. It knows one rule more: a job that trains is stopped only after that was
spent from the cluster's budget.
"""

import hashlib
import json
import struct
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Begun = dict[int, tuple[float, dict[str, list[int]]]]  # attempt -> when committed, ranks by node
Spent = dict[tuple[str, str], float]  # job and incident -> when committed

GENESIS = hashlib.sha256(b"rankmend journal 1").digest()[:16]
HOUR_S = 3600.0
SLACK_S = 20.0  # between the date of a plan and its commit
WHILE_TRAINING = ("numbers_wrong", "rank_slow")


class Reader:
    def __init__(self) -> None:
        self.violations: list[str] = []
        self.seen: Counter[str] = Counter()
        self.limits: dict[str, int] = {}
        self.rows: dict[str, list[Row]] = defaultdict(list)
        self.orders: dict[str, list[Row]] = defaultdict(list)
        self.lives: dict[str, list[Row]] = defaultdict(list)

    def find(self, rule: str, about: str, text: str) -> None:
        self.violations.append(f"{rule}: {about}: {text}")

    def read(self, path: Path) -> None:
        with path.open(encoding="utf-8") as file:
            for line in file:
                told = json.loads(line)
                if "limits" in told:
                    self.limits = told["limits"]
                elif "row" in told:
                    self.rows[told["row"]["journal"]].append(told["row"])
                    self.seen["records"] += 1
                elif "order" in told:
                    self.orders[told["order"]["job_id"]].append(told["order"])
                    self.seen["orders"] += 1
                else:
                    self.lives[told["life"]["job_id"]].append(told["life"])
                    self.seen["lives"] += 1

    def check(self) -> None:
        cluster = self.rows.pop("cluster", [])
        cluster = cluster if self.is_whole("cluster", cluster) else []
        spent = self.spendings(cluster)
        begun: dict[str, Begun] = {}
        for name, rows in self.rows.items():
            job = name.partition(":")[2]
            if not self.is_whole(name, rows):
                continue
            self.ownership(name, rows)
            begun[job] = self.attempts(name, rows)
            self.incidents(name, job, rows, spent)
        for job in self.orders:
            self.commands(job, begun.get(job, {}))
        for job in self.lives:
            self.processes(job, begun.get(job, {}))
        self.stops(cluster)

    # What the database holds.

    def is_whole(self, name: str, rows: list[Row]) -> bool:
        before = GENESIS
        for place, row in enumerate(rows, 1):
            if row["number"] != place:
                self.find("gap", name, f"record {row['number']} stands at place {place}")
                return False
            texts = [row[part].encode() for part in ("kind", "boot", "body")]
            head = struct.pack(
                *("<QIIddQQQ", row["number"], row["major"], row["minor"], row["unix"]),
                *(row["monotonic"], *map(len, texts)),
            )
            whole = hashlib.sha256(before + head + b"".join(texts)).digest()[:16]
            if whole.hex() != row["checksum"]:
                self.find("checksum", name, f"record {place}")
                return False
            before = whole
        return True

    def ownership(self, name: str, rows: list[Row]) -> None:
        owners: dict[int, str] = {}
        top, last = 0, 0.0
        for row in rows:
            about = f"record {row['number']}"
            if owners.setdefault(row["epoch"], row["writer"]) != row["writer"]:
                self.find("two owners", name, f"{about}, epoch {row['epoch']}")
            if row["epoch"] < top:
                self.find("epoch falls", name, f"{about}: {row['epoch']} behind {top}")
            if row["committed"] < last - 0.001:
                self.find("commits out of order", name, about)
            top, last = max(top, row["epoch"]), max(last, row["committed"])

    def attempts(self, name: str, rows: list[Row]) -> Begun:
        """Return when each attempt was committed, and where it is placed."""
        begun: Begun = {}
        newest = 0
        for row in rows:
            if row["kind"] != "attempt_started":
                continue
            body = json.loads(row["body"])
            if body["attempt"] <= newest:
                self.find("attempt falls", name, f"{body['attempt']} behind {newest}")
            newest = max(newest, body["attempt"])
            placed = {one["node"]: sorted(one["ranks"]) for one in body["placement"]}
            begun[body["attempt"]] = (row["committed"], placed)
        self.seen["attempts"] += len(begun)
        if len(begun) - 1 > self.limits["restarts_max"]:
            self.find("restarts", name, f"{len(begun)} attempts")
        return begun

    def incidents(self, name: str, job: str, rows: list[Row], spent: Spent) -> None:
        is_open: str | None = None
        tries, ended = 0, set()
        trains = False
        for row in rows:
            if row["kind"] == "incident_opened":
                body = json.loads(row["body"])
                if is_open is not None:
                    self.find("two incidents", name, f"{body['incident_id']} beside {is_open}")
                if body["incident_id"] in ended:
                    self.find("incident twice", name, body["incident_id"])
                is_open, tries = body["incident_id"], body["policy"]["tries_max"]
                trains = body["failure"]["finding"]["kind"] in WHILE_TRAINING
                self.seen["incidents"] += 1
            elif row["kind"] == "incident_event":
                event = json.loads(row["body"])["event"]
                if is_open is None or event["incident_id"] != is_open:
                    self.find("event without incident", name, f"record {row['number']}")
                    continue
                if trains and event["outcome"] == "accepted":
                    self.seen["jobs stopped while they trained"] += 1
                    if spent.get((job, is_open), float("inf")) > row["committed"] + 0.001:
                        self.find("stopped before it was spent", name, is_open)
                if _ends(event, tries):
                    ended.add(is_open)
                    is_open = None
        if is_open is not None:
            self.find("not ended", name, is_open)

    def spendings(self, rows: list[Row]) -> Spent:
        """Return when each incident's first stop of a job that trained was committed."""
        found: Spent = {}
        keys = set()
        for row in rows:
            if row["kind"] != "spent":
                continue
            body = json.loads(row["body"])
            key = (body["job_id"], body["incident_id"], body["try_number"])
            if key in keys:
                self.find("spent twice", "cluster", str(key))
            keys.add(key)
            if body["stops_training"]:
                self.seen["stops spent"] += 1
                found.setdefault((body["job_id"], body["incident_id"]), row["committed"])
        return found

    def stops(self, rows: list[Row]) -> None:
        times = sorted(
            row["committed"]
            for row in rows
            if row["kind"] == "spent" and _is_bounded(json.loads(row["body"]))
        )
        for at in times:
            count = sum(at - HOUR_S + SLACK_S < one <= at for one in times)
            if count > self.limits["stops_per_hour_max"]:
                self.find("stops per hour", "cluster", f"{count} within the hour before {at:.0f}")

    # What launchers saw.

    def commands(self, job: str, begun: Begun) -> None:
        owners: dict[int, str] = {}
        attempts: dict[tuple[int, int], int] = {}
        followed: dict[str, tuple[int, int]] = {}
        for order in self.orders[job]:
            at = (order["epoch"], order["revision"])
            if owners.setdefault(order["epoch"], order["controller_id"]) != order["controller_id"]:
                self.find("order of two owners", job, f"epoch {order['epoch']}")
            if attempts.setdefault(at, order["attempt"]) != order["attempt"]:
                self.find("order of two attempts", job, str(at))
            if order["ranks"]:
                known = begun.get(order["attempt"])
                if known is None:
                    self.find("order without record", job, f"attempt {order['attempt']}")
                elif order["at_unix_s"] < known[0] - 0.002:
                    self.find("order before its record", job, f"attempt {order['attempt']}")
                elif known[1].get(order["node"]) != sorted(order["ranks"]):
                    self.find("order of other ranks", job, f"{order['node']}, {order['attempt']}")
            if order["is_followed"]:
                if at < followed.get(order["launcher_id"], (0, 0)):
                    self.find("launcher went back", job, f"{order['node']} to {at}")
                followed[order["launcher_id"]] = at
        steps = [attempts[at] for at in sorted(attempts)]
        if steps != sorted(steps):
            self.find("attempts of orders fall", job, str(steps))

    def processes(self, job: str, begun: Begun) -> None:
        lives = sorted(self.lives[job], key=lambda one: one["began_unix_s"])
        seen = set()
        for place, life in enumerate(lives):
            key = (life["node"], life["attempt"])
            if key in seen:
                self.find("started twice", job, str(key))
            seen.add(key)
            if life["node"] not in begun.get(life["attempt"], (0.0, {}))[1]:
                self.find("life without record", job, str(key))
            end = life["ended_unix_s"]
            for other in lives[place + 1 :]:
                if end is not None and other["began_unix_s"] >= end:
                    break
                if other["attempt"] != life["attempt"]:
                    text = f"{key} until {end}, {other['attempt']} from {other['began_unix_s']}"
                    self.find("two attempts at once", job, text)
                elif set(other["ranks"]) & set(life["ranks"]):
                    self.find("one rank twice", job, f"{key} and {other['node']}")


def _is_bounded(spent: Row) -> bool:
    """Return whether a stop counts: one that a person wanted is beyond no budget, and takes nothing from the others."""
    return bool(spent["stops_training"]) and not spent.get("by_person")


def _ends(event: Row, tries_max: int) -> bool:
    """Return whether an event ends its incident; ``answers`` is INCIDENT, or INCIDENT/TRY/PHASE."""
    outcome = event["outcome"]
    if outcome in ("escalate", "cancel"):
        return True
    parts = event["answers"].rsplit("/", 2)
    if len(parts) != 3:
        return False
    _incident, number, phase = parts
    if outcome == "succeeded":
        return phase == "verifying"
    return outcome == "failed" and (phase == "fencing" or int(number) >= tries_max)


def main() -> None:
    reader = Reader()
    reader.read(Path(sys.argv[1]))
    reader.check()
    read = ", ".join(f"{count:,} {what}" for what, count in sorted(reader.seen.items()))
    in_words = f"{len(reader.violations)} violations in {read}"
    print(json.dumps({"in_words": in_words, "violations": reader.violations}))


if __name__ == "__main__":
    main()

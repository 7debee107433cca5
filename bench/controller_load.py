"""Load on the controller's service: simulated launchers over real TLS and HTTP, each with its long poll.

    python bench/controller_load.py                                    # 2,000 nodes of 8 ranks, each second
    python bench/controller_load.py --nodes 9900 --every 5             # two descriptors a node on either side
    python bench/controller_load.py --controller-core 0 --generator-core 1 --output load.json

Starts `rankmend controller` with what `init` makes, joins NODES launchers and SPARES more to one job, and measures one after the other:

steady    reports at an even pace (open loop: a late answer delays no other report), while every launcher holds its poll
orders    a person restarts the job: when the new orders have reached half and all of the launchers
storm     kill -9 of the controller and a new start: when all launchers have reported again, first with the pauses
          that launchers make, then with none
alerts    a switch dies: all ranks stand still and ALERTS alerts come in one message; the incidents and plans that follow

The generator is a process of its own, so its cost is not the controller's; both are shown.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil
import uvloop
from controller_fleet import Fleet, Seen, Server, in_thread, raise_descriptors, say, until
from yardstick import measure_yardstick

from recovery.api import wire
from recovery.api.controller_errors import UnreachableError
from recovery.messages.outside import PersonAct

SWITCH_NODES = 32  # that hang on one leaf switch


def percentiles(values: list[float], unit: float = 1e3) -> dict[str, float]:
    ordered = sorted(values)
    return {
        f"p{100 * share:g}": round(unit * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)
        for share in (0.5, 0.99, 1.0)
    }  # fmt: skip


async def measure_steady(fleet: Fleet, server: Server, seconds: float) -> dict[str, object]:
    fleet.seen = Seen()
    own, began_s = psutil.Process(), time.perf_counter()
    cpu_s, own_cpu_s, rss_mib = server.cpu_s, sum(own.cpu_times()[:2]), server.rss_mib
    waited_s = server.waited_s
    await asyncio.sleep(seconds)
    took_s = time.perf_counter() - began_s
    used_s, own_used_s = server.cpu_s - cpu_s, sum(own.cpu_times()[:2]) - own_cpu_s
    seen, fleet.seen = fleet.seen, Seen()
    reports = len(seen.latencies_s)
    return {
        "seconds": round(took_s, 1),
        "reports_per_s": round(reports / took_s),
        "report_bytes": seen.bytes // max(1, reports),
        "report_ms": percentiles(seen.latencies_s),
        "statuses": seen.statuses,
        "controller_cpu_percent": round(100 * used_s / took_s, 1),
        "controller_waited_percent": round(100 * (server.waited_s - waited_s) / took_s, 1),
        "controller_us_per_report": round(1e6 * used_s / max(1, reports)),
        "generator_cpu_percent": round(100 * own_used_s / took_s, 1),
        "controller_rss_mib": round(server.rss_mib),
        "growth_mib": round(server.rss_mib - rss_mib, 1),
        "load_average": os.getloadavg()[0],
    }


async def measure_orders(fleet: Fleet, server: Server, attempt: int) -> dict[str, object]:
    """A person restarts the job: an order to stop, and once all are empty, one to start."""
    asked_unix_s, cpu_s, waited_s = time.time(), server.cpu_s, server.waited_s
    with contextlib.suppress(UnreachableError):  # the answer is late; what was asked is under way
        await in_thread(server.admin.command, fleet.job_id, PersonAct.RESTART, reason="bench")
    await fleet.run_through(attempt)
    running = [one for one in fleet.launchers if one.order is not None and one.order.ranks]
    stopped = sorted(one.stopped_unix_s for one in running)
    started = sorted(one.started_unix_s for one in running)
    story = await read_story(fleet, server)
    lines = [line for line in story.lines if line.unix_s >= asked_unix_s]
    began_unix_s = next(line.unix_s for line in lines if line.kind == "attempt_started")
    half = len(running) // 2
    return {
        "stop_from_request_s": {
            "half": round(stopped[half] - asked_unix_s, 3),
            "all": round(stopped[-1] - asked_unix_s, 3),
        },
        "stop_from_journal_s": {
            "half": round(stopped[half] - lines[0].unix_s, 3),
            "all": round(stopped[-1] - lines[0].unix_s, 3),
        },
        "start_from_journal_s": {
            "half": round(started[half] - began_unix_s, 3),
            "all": round(started[-1] - began_unix_s, 3),
        },
        "controller_cpu_s": round(server.cpu_s - cpu_s, 2),
        "controller_waited_s": round(server.waited_s - waited_s, 2),
        "load_average": os.getloadavg()[0],
    }


async def measure_storm(fleet: Fleet, server: Server, *, is_patient: bool) -> dict[str, object]:
    """kill -9, start again: when everybody has reported and holds a poll again."""
    fleet.is_patient, fleet.seen = is_patient, Seen()
    server.kill()
    await asyncio.sleep(1.0)  # everybody has noticed, and tries again
    await in_thread(server.start)
    began_s, cpu_s = time.perf_counter(), server.cpu_s
    await until(
        lambda: min(one.accepted_s for one in fleet.launchers) > began_s, "all have reported", 120
    )
    took_s = time.perf_counter() - began_s
    await until(  # its epoch is a new one, so every poll is answered with an order
        lambda: min(one.polled_s for one in fleet.launchers) > began_s, "all hold a poll", 120
    )
    ordered_s, used_s = time.perf_counter() - began_s, server.cpu_s - cpu_s
    seen, fleet.seen, fleet.is_patient = fleet.seen, Seen(), True
    return {
        "all_back_s": round(took_s, 2),
        "all_ordered_s": round(ordered_s, 2),
        "report_with_handshake_ms": percentiles(seen.latencies_s),
        "answers_and_failures": seen.statuses,
        "controller_cpu_s": round(used_s, 2),
        "load_average": os.getloadavg()[0],
    }


async def measure_alerts(fleet: Fleet, server: Server, count: int) -> dict[str, object]:
    """A leaf switch dies: every rank waits in a collective, and its nodes' links are told of."""
    fleet.stands_still, fleet.still_since_s = True, time.perf_counter()
    running = [one for one in fleet.launchers if one.order is not None and one.order.ranks]
    nodes = [one.node for one in running[:SWITCH_NODES]]
    alerts = [
        {
            "labels": {
                "alertname": "RankmendNicLinkDown",
                "node": nodes[number % len(nodes)],
                "device": f"mlx5_{number // len(nodes)}",
                "severity": "critical",
                "action": "drain",
            },
            "annotations": {"summary": "link is down"},
        }
        for number in range(count)
    ]
    asked_s, asked_unix_s = time.perf_counter(), time.time()
    await in_thread(server.admin.post_alerts, alerts)
    answered_s = time.perf_counter() - asked_s
    deadline_s = time.perf_counter() + 120
    story = wire.Story("", "", None, [])
    while time.perf_counter() < deadline_s and not any(
        one.kind == "decided" for one in story.lines
    ):
        await asyncio.sleep(0.5)
        story = replace_lines(await read_story(fleet, server), asked_unix_s)
    await asyncio.sleep(3.0)  # a second plan would come now
    story = replace_lines(await read_story(fleet, server), asked_unix_s)
    at_s = {line.kind: round(line.unix_s - asked_unix_s, 3) for line in reversed(story.lines)}
    kinds = [line.kind for line in story.lines]
    fleet.stands_still = False
    return {
        "alerts": count,
        "nodes": len(nodes),
        "answered_s": round(answered_s, 3),
        "records": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
        "first_record_after_s": at_s,
        "plan": [line.text for line in story.lines if line.kind == "decided"],
        "load_average": os.getloadavg()[0],
    }


async def read_story(fleet: Fleet, server: Server) -> wire.Story:
    deadline_s = time.perf_counter() + 120
    while True:
        try:
            story = await in_thread(server.admin.story, fleet.job_id)
        except UnreachableError as error:
            if time.perf_counter() > deadline_s:
                sys.exit(f"no story after 120 s: {error}")
            continue
        assert isinstance(story, wire.Story)
        return story


def replace_lines(story: wire.Story, since_unix_s: float) -> wire.Story:
    lines = [line for line in story.lines if line.unix_s >= since_unix_s]
    return wire.Story(story.job_id, story.job, story.incident_id, lines)


async def measure(options: argparse.Namespace, server: Server) -> dict[str, object]:
    fleet = Fleet(options, server.port, server.folder)
    told: dict[str, object] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "nodes": options.nodes,
        "spares": options.spares,
        "ranks_per_node": options.ranks,
        "every_s": options.every,
    }
    idle_mib, began_s = server.rss_mib, time.perf_counter()
    await fleet.start()
    told["join_s"] = round(time.perf_counter() - began_s, 2)
    say(f"all have joined after {told['join_s']} s")
    await fleet.run_through(1)
    told["first_order_s"] = round(time.perf_counter() - began_s, 2)
    say(f"all were ordered to start after {told['first_order_s']} s")
    await asyncio.sleep(options.settle)
    told["idle_mib"] = round(idle_mib)
    for part in options.parts.split(","):
        for name, measured in await measure_part(part, fleet, server, options):
            again = sum(key == name or key.startswith(f"{name}_again") for key in told)
            told[name if not again else f"{name}_again{again}"] = measured
            say(f"{name}: {json.dumps(measured)}")
    await fleet.stop()
    return told


async def measure_part(
    part: str, fleet: Fleet, server: Server, options: argparse.Namespace
) -> list[tuple[str, dict[str, object]]]:
    if part == "steady":
        return [(part, await measure_steady(fleet, server, options.seconds))]
    if part == "orders":
        attempt = max(0 if one.order is None else one.order.attempt for one in fleet.launchers)
        told = await measure_orders(fleet, server, attempt + 1)
        await asyncio.sleep(2.0)  # the attempt is verified
        return [(part, told)]
    if part == "storm":
        patient = await measure_storm(fleet, server, is_patient=True)
        await asyncio.sleep(options.settle)
        impatient = await measure_storm(fleet, server, is_patient=False)
        await asyncio.sleep(options.settle)
        return [(part, patient), ("storm_without_pauses", impatient)]
    return [(part, await measure_alerts(fleet, server, options.alerts))]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--spares", type=int, default=0, help="launchers beyond the job's nodes")
    parser.add_argument("--ranks", type=int, default=8, help="a node")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two reports")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the steady part")
    parser.add_argument("--settle", type=float, default=5.0, help="seconds between two parts")
    parser.add_argument("--alerts", type=int, default=1000)
    parser.add_argument(
        "--parts", default="steady,orders,storm,alerts", help="in this order, and as often as named"
    )
    parser.add_argument("--journal", help="postgresql://... (default: SQLite)")
    parser.add_argument("--job", default="load", help="its name and key")
    parser.add_argument("--controller-core", type=int, help="the only one it may use")
    parser.add_argument("--generator-core", type=int)
    parser.add_argument("--output", type=Path, help="file for the figures as JSON")
    options = parser.parse_args(arguments)
    unknown = set(options.parts.split(",")) - {"steady", "orders", "storm", "alerts"}
    if unknown:
        parser.error(f"no part {sorted(unknown)}")
    raise_descriptors(options.nodes + options.spares)
    return options


def run(options: argparse.Namespace) -> dict[str, object]:
    yardstick = measure_yardstick().as_dict()
    with tempfile.TemporaryDirectory() as base:
        server = Server(Path(base), options.controller_core, options.journal)
        if options.generator_core is not None:
            psutil.Process().cpu_affinity([options.generator_core])
        try:
            told = uvloop.run(measure(options, server))
        finally:
            print(*server.warnings[:10], sep="\n", file=sys.stderr)
            server.close()
    return {**told, "yardstick": yardstick}


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and the controller with us
    options = parse()
    told = run(options)
    text = json.dumps(told, indent=1)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()

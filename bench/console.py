"""The console at scale: how long its pages take to draw, and what its viewers cost the deciding thread.

    python bench/console.py                                   # 2,000 nodes of 8 ranks, 20 viewers
    python bench/console.py --nodes 200 --seconds 10 --rounds 1

Starts `rankmend controller` with what `init` makes and joins NODES simulated launchers to one job (bench/controller_fleet.py).

pages    headless Chromium opens the fleet and the job: from the click until the page is painted, for the job until all
         ranks are on the map; PAGES times each
viewers  SECONDS without viewers and SECONDS with VIEWERS of them, by turns, ROUNDS times: each viewer holds a stream of
         events and fetches its page again at each event, half of them the fleet, half the job. The mean turn of the
         deciding thread with and without them and the ratio of both, and the controller's processor time. The median of
         all rounds: whatever else runs on the machine makes single ones differ by a factor of two
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import ssl
import statistics
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
from controller_fleet import Fleet, Server, in_thread, raise_descriptors, say
from controller_load import percentiles

from recovery.console.site import PART_HEADER

TURN = "rankmend_controller_turn_seconds"


async def sign_in(server: Server) -> aiohttp.ClientSession:
    context = ssl.create_default_context(cafile=str(server.folder / "ca.crt"))
    session = aiohttp.ClientSession(
        f"https://localhost:{server.port}",
        connector=aiohttp.TCPConnector(ssl=context, limit=0),
    )
    token = (server.folder / "admin.token").read_text().strip()
    async with session.post(
        "/sign-in", data={"token": token, "next": "/metrics"}, allow_redirects=False
    ) as answer:
        assert answer.status == 303, await answer.text()
    return session


async def view(session: aiohttp.ClientSession, path: str, took_s: list[float]) -> None:
    """Look at a page as a browser does, for ever."""
    async with session.get("/live", timeout=aiohttp.ClientTimeout(total=None)) as stream:
        assert stream.status == 200, await stream.text()
        async for line in stream.content:
            if not line.startswith(b"event"):
                continue
            began_s = time.perf_counter()
            for wanted in (path, f"{path}/ranks.json") if path.startswith("/jobs/") else (path,):
                async with session.get(wanted, headers={PART_HEADER: "page"}) as answer:
                    assert answer.status == 200, answer.status
                    await answer.read()
            took_s.append(time.perf_counter() - began_s)


async def read_turns(server: Server) -> tuple[float, float]:
    """Return the sum of the turns' seconds, and their number."""
    context = ssl.create_default_context(cafile=str(server.folder / "ca.crt"))
    token = (server.folder / "admin.token").read_text().strip()
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session,
        session.get(f"https://localhost:{server.port}/metrics", ssl=context) as answer,
    ):
        text = await answer.text()
    values = [re.search(rf"^{TURN}_{what} (\S+)$", text, re.M) for what in ("sum", "count")]
    return float(values[0][1]), float(values[1][1])  # type: ignore[index]


async def measure_part(fleet: Fleet, server: Server, seconds: float) -> dict[str, float]:
    fleet.seen.latencies_s.clear()
    sum_s, turns = await read_turns(server)
    cpu_s, began_s = server.cpu_s, time.perf_counter()
    await asyncio.sleep(seconds)
    took_s, used_s = time.perf_counter() - began_s, server.cpu_s - cpu_s
    sum_after_s, turns_after = await read_turns(server)
    count = max(1.0, turns_after - turns)
    return {
        "turn_ms": 1e3 * (sum_after_s - sum_s) / count,
        "turns_per_s": count / took_s,
        "cpu_percent": 100 * used_s / took_s,
        "report_p50_ms": percentiles(fleet.seen.latencies_s or [0.0])["p50"],
    }


async def measure_viewers(
    fleet: Fleet, server: Server, options: argparse.Namespace
) -> dict[str, object]:
    rounds: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
    took_s: list[float] = []
    for _ in range(options.rounds):
        rounds["without"].append(await measure_part(fleet, server, options.seconds))
        sessions = [await sign_in(server) for _ in range(options.viewers)]
        paths = ("/", f"/jobs/{fleet.job_id}")
        tasks = [
            asyncio.create_task(view(session, paths[number % 2], took_s))
            for number, session in enumerate(sessions)
        ]
        await asyncio.sleep(2.0)
        rounds["with"].append(await measure_part(fleet, server, options.seconds))
        for task in tasks:
            if task.done():
                task.result()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for session in sessions:
            await session.close()
    means = {
        name: {key: round(statistics.median(one[key] for one in parts), 3) for key in parts[0]}
        for name, parts in rounds.items()
    }
    ratio = round(means["with"]["turn_ms"] / means["without"]["turn_ms"], 2)
    return {**means, "turn_ratio": ratio, "fetch_ms": percentiles(took_s), "fetches": len(took_s)}


def measure_pages(server: Server, job_id: str, ranks: int, count: int) -> dict[str, object]:
    """Open the pages in headless Chromium, in a thread of its own."""
    from playwright.sync_api import sync_playwright

    found: dict[str, list[float]] = {"fleet": [], "job": []}
    weights: dict[str, int] = {}
    token = (server.folder / "admin.token").read_text().strip()
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        context = browser.new_context(
            ignore_https_errors=True, viewport={"width": 1280, "height": 900}
        )
        page = context.new_page()
        page.set_default_timeout(120_000)
        base = f"https://localhost:{server.port}"
        page.goto(f"{base}/sign-in")
        page.fill("#token", token)
        page.click("main button")
        painted = "() => new Promise(done => requestAnimationFrame(() => setTimeout(() => done(performance.now()), 0)))"
        for _ in range(count):
            for name, path in (("fleet", "/"), ("job", f"/jobs/{job_id}")):
                answer = page.goto(base + path, wait_until="domcontentloaded")
                if name == "job":
                    page.wait_for_selector(f"#heat[data-drawn='{ranks}']")
                found[name].append(page.evaluate(painted) / 1e3)  # since the navigation began
                weights[name] = len(answer.body())
                time.sleep(1.5)  # the shared answers are old by then
        browser.close()
    return {
        name: {"painted_ms": percentiles(times), "html_kb": weights[name] // 1000}
        for name, times in found.items()
    }


async def measure(options: argparse.Namespace, server: Server) -> dict[str, object]:
    fleet = Fleet(options, server.port, server.folder)
    await fleet.start()
    await fleet.run_through(1)
    say(f"{options.nodes} nodes run")
    await asyncio.sleep(options.settle)
    told: dict[str, object] = {"nodes": options.nodes, "ranks": options.nodes * options.ranks}
    ranks = options.nodes * options.ranks
    told["pages"] = await in_thread(measure_pages, server, fleet.job_id, ranks, options.pages)
    say(json.dumps(told["pages"]))
    told["viewers"] = await measure_viewers(fleet, server, options)
    told["load_average"] = os.getloadavg()[0]
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(fleet.stop(), 30)
    return told


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--ranks", type=int, default=8, help="a node")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two reports")
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each part")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pages", type=int, default=5)
    parser.add_argument("--settle", type=float, default=10.0)
    parser.add_argument("--output", type=Path, help="file for the figures as JSON")
    options = parser.parse_args()
    options.spares, options.job = 0, "load"
    raise_descriptors(options.nodes)
    return options


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    options = parse()
    with tempfile.TemporaryDirectory() as base:
        server = Server(Path(base), None)
        try:
            told = asyncio.run(measure(options, server))
        finally:
            print(*server.warnings[:10], sep="\n", file=sys.stderr)
            server.close()
    text = json.dumps(told, indent=1)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()

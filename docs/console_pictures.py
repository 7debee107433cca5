"""Takes the pictures of docs/operate/console.md in a real Chromium.

    .venv/bin/python docs/console_pictures.py

The jobs are simulated: launchers that only speak, to a real controller (tests/support/console_stage.py).
"""

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.browser import Visit, chromium  # noqa: E402
from tests.support.console_stage import staged  # noqa: E402
from tests.support.eventually import eventually  # noqa: E402

FOLDER = ROOT / "docs/operate"
BYTES_MAX = 150_000
WIDE, NARROW = {"width": 1280, "height": 860}, {"width": 390, "height": 760}


def take(visit: Visit, name: str, path: str, wait_for: str) -> None:
    visit.go(path)
    visit.page.wait_for_selector(wait_for)
    visit.page.wait_for_selector("#live.on")
    taken = _smaller(visit.page.screenshot())
    (FOLDER / f"{name}.png").write_bytes(taken)
    print(f"{name}.png {len(taken)} bytes")
    assert len(taken) < BYTES_MAX, name


def _smaller(taken: bytes) -> bytes:
    """Return the picture with a palette: a third of the bytes, and no eye sees it."""
    shrunk = io.BytesIO()
    Image.open(io.BytesIO(taken)).convert("RGB").quantize(
        256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
    ).save(shrunk, "PNG", optimize=True)
    return min(taken, shrunk.getvalue(), key=len)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as base,
        chromium() as browser,
        staged(Path(base) / "files") as stage,
    ):
        big = stage.jobs[0].job_id
        recovered = stage.recover(
            stage.start("small-finetune", ["r3-n08", "r3-n09", "r3-n10"], spares=1)
        )
        waits = stage.admin.plans()[0].incident_id
        eventually(lambda: (stage.admin.job(big).job.highest_step or 0) > 1060, "some steps")
        for scheme in ("light", "dark"):
            with Visit(browser, stage.up.url, viewport=WIDE, color_scheme=scheme) as visit:
                visit.sign_in(stage.token("admin"))
                take(visit, f"console-fleet-{scheme}", "/", ".map")
                take(visit, f"console-job-{scheme}", f"/jobs/{big}", "#heat[data-drawn='208']")
                take(
                    visit,
                    f"console-incident-{scheme}",
                    f"/incidents/{recovered}",
                    ".waterfall",
                )
        with Visit(browser, stage.up.url, viewport=NARROW, color_scheme="dark") as visit:
            visit.sign_in(stage.token("admin"))
            take(visit, "console-phone", f"/incidents/{waits}", ".waterfall")


if __name__ == "__main__":
    main()

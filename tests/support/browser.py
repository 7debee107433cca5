"""Debian's Chromium, driven by Playwright: pages that fail a test by what they complain about."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.eventually import DEADLINE_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_TELL_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation",
  (event) => window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""
LONG_MS = 1000.0 * DEADLINE_S


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the browser, or skip the test where it or its driver is missing."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    with driver.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """A context of the browser with one page, which remembers what went wrong on it."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.url = url
        self.troubles: list[str] = []
        self.context = browser.new_context(ignore_https_errors=True, **options)
        self.context.add_init_script(_TELL_VIOLATIONS)
        self.page = self.context.new_page()
        self.page.set_default_timeout(LONG_MS)
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on("console", self._hear)

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.troubles.append(f"{message.type}: {message.text}")

    def go(self, path: str) -> Any:
        return self.page.goto(self.url + path)

    def sign_in(self, token: str) -> None:
        self.go("/sign-in")
        self.page.fill("#token", token)
        # Whatever the answer is: the next step would cut it off.
        with self.page.expect_navigation():
            self.page.click("main button")

    def complaints(self) -> list[str]:
        """Return what the page complained of, violations of its policy included."""
        return [*self.troubles, *self.page.evaluate("window.violations")]

    def is_wider_than_its_window(self) -> bool:
        return bool(
            self.page.evaluate(
                "document.documentElement.scrollWidth > document.documentElement.clientWidth"
            )
        )

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, *_failure: object) -> None:
        self.context.close()

// Keeps a page as new as the controller's state: one stream of events for each page, and the page itself
// fetched again when an event says that something changed. Without this script every page works after a reload.
"use strict";
(() => {
  const place = document.body.dataset.live;
  const status = document.getElementById("live");
  if (!place || !status || !("EventSource" in window)) return;
  const RETRY_MS = 3000;
  const SHARED_MS = 2200; // viewers share answers that are up to 2 s old: what has just changed is in the next one
  const page = document.getElementById("page");
  let isBusy = false, isDue = false, lostAt = null, events = null, seen = null;

  const clock = () => new Date().toISOString().slice(11, 19);

  function say(text, kind) {
    if (status.textContent === text) return; // spoken only when it changes
    status.textContent = text;
    status.className = kind;
  }

  function lose() {
    if (lostAt === null) lostAt = clock();
    say(`Not live since ${lostAt}`, "off");
  }

  function show(text) {
    Idiomorph.morph(page, text, {
      morphStyle: "innerHTML",
      ignoreActiveValue: true,
      restoreFocus: true,
      callbacks: {
        beforeNodeMorphed: (old, next) => {
          if (old.nodeType !== 1) return true;
          if (old.hasAttribute("data-keep")) return false;
          if (old.tagName === "DETAILS") next.open = old.open;
          if (old.matches("input, select")) return false; // what a person has typed or chosen
          if (old.matches("a.cell") && next.matches && next.matches("a.cell")) next.tabIndex = old.tabIndex;
          return true;
        },
      },
    });
    document.dispatchEvent(new Event("page-renewed"));
  }

  async function renew() {
    if (isBusy || document.hidden) { isDue = true; return; }
    isBusy = true;
    isDue = false;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html", "Rankmend-Part": "page" }, cache: "no-store" });
      if (answer.status === 401 || answer.redirected) { location.reload(); return; }
      if (!answer.ok) return;
      if (answer.headers.get("Rankmend-Part") !== "page") { location.reload(); return; } // another version serves it now
      show(await answer.text());
      if (events.readyState === EventSource.OPEN) { lostAt = null; say("Live", "on"); }
    } catch {
      lose();
    } finally {
      isBusy = false;
      if (isDue && !document.hidden) setTimeout(renew, 500);
    }
  }

  function listen() {
    events = new EventSource(place);
    let isFirst = lostAt === null;
    events.addEventListener("revision", (event) => {
      const isNew = seen !== null && seen !== event.data;
      seen = event.data;
      if (isFirst) { isFirst = false; say("Live", "on"); return; }
      renew();
      if (isNew) setTimeout(renew, SHARED_MS);
    });
    events.onerror = () => {
      lose();
      if (events.readyState !== EventSource.CLOSED) return; // it tries again by itself
      renew(); // the answer was no stream: perhaps the session has ended, which only the page itself can tell
      setTimeout(listen, RETRY_MS);
    };
  }

  document.addEventListener("visibilitychange", () => { if (!document.hidden && isDue) renew(); });
  addEventListener("pagehide", () => events && events.close());
  addEventListener("pageshow", (event) => { if (event.persisted) listen(); });
  listen();
})();

// The nodes of the fleet: one stop of the Tab key, and arrow keys between them.
(() => {
  document.addEventListener("keydown", (event) => {
    const cell = event.target;
    if (!(cell instanceof HTMLElement) || !cell.matches(".map a.cell")) return;
    const cells = [...document.querySelectorAll(".map a.cell")];
    const at = cells.indexOf(cell), ROW = 16;
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + ROW, ArrowUp: at - ROW, Home: 0, End: cells.length - 1 }[event.key];
    if (next === undefined || !cells[next]) return;
    event.preventDefault();
    cell.tabIndex = -1;
    cells[next].tabIndex = 0;
    cells[next].focus();
  });
})();

// Keeps a page as new as the controller's state: one stream of events for each page that is seen, and the page itself
// fetched again at each event. Without this script every page works after a reload.
"use strict";
(() => {
  const place = document.body.dataset.live;
  const status = document.getElementById("live");
  if (!place || !status || !("EventSource" in window)) return;
  const RETRY_MS = 3000;
  const SHARED_MS = 2200; // viewers share answers that are up to 2 s old: what has just changed is in the next one
  const BROKEN_MS = 6000; // proxies cut a stream once a minute: it is back within 3 s, and nobody needs to hear of it
  const SILENT_MS = 25000; // events come every 5 s: then the connection is dead, as after a laptop's sleep, though no error says so
  const RELOAD_MS = 60000; // a proxy that lets pages through and no script would else be asked for ever
  const page = document.getElementById("page");
  let isBusy = false, isDue = false, events = null, retry = null, seen = null;
  // Of the wall clock: others stand still while a laptop sleeps.
  let freshMs = Date.now(), heardMs = freshMs, openedMs = freshMs, brokenMs = null;

  const clock = (ms) => new Date(ms).toISOString().slice(Date.now() - ms < 12 * 3600e3 ? 11 : 0, 19).replace("T", " ");

  function say(text, kind) {
    if (status.textContent === text) return; // spoken only when it changes
    status.textContent = text;
    status.className = kind;
  }

  function lose() { say(`Not live since ${clock(freshMs)} UTC`, "off"); }

  function reload() {
    try {
      if (Date.now() - Number(sessionStorage.getItem("rankmend-reloaded")) < RELOAD_MS) return;
      sessionStorage.setItem("rankmend-reloaded", String(Date.now()));
    } catch { return; }
    location.reload();
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
          if (old.matches(".rack, tr") && old.isEqualNode(next)) return false; // most of 10,000 nodes: left at once
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
      const headers = { Accept: "text/html", "Rankmend-Part": "page" };
      const answer = await fetch(location.href, { headers, cache: "no-store", redirect: "manual" });
      const part = answer.headers.get("Rankmend-Part"); // none: a proxy has answered
      if (answer.type === "opaqueredirect" || answer.status === 401) { reload(); return; } // to a door, this console's or a proxy's
      if (part === null && answer.status < 500) { reload(); return; } // a proxy's door
      if (!answer.ok) return;
      if (part !== "page") { reload(); return; } // another version serves it now
      show(await answer.text());
      freshMs = Date.now();
      if (brokenMs === null) say("Live", "on");
    } catch { // the clock below says it, if that goes on
    } finally {
      isBusy = false;
      if (isDue && !document.hidden) setTimeout(renew, 500);
    }
  }

  function stop() {
    clearTimeout(retry);
    if (events) events.close();
    events = null;
  }

  function listen() {
    stop();
    const own = events = new EventSource(place);
    heardMs = Date.now();
    own.addEventListener("revision", (event) => {
      if (own !== events) return;
      heardMs = Date.now();
      brokenMs = null;
      const isNew = seen !== null && seen !== event.data, isMadeNow = seen === null && heardMs - freshMs < RETRY_MS;
      seen = event.data;
      if (isMadeNow) { say("Live", "on"); return; }
      renew();
      if (isNew) setTimeout(renew, SHARED_MS);
    });
    own.onerror = () => {
      if (own !== events) return;
      brokenMs ??= Date.now();
      if (own.readyState !== EventSource.CLOSED) return; // it tries again by itself
      renew(); // the answer was no stream: perhaps the session has ended, which only the page itself can tell
      retry = setTimeout(listen, RETRY_MS);
    };
  }

  // A page that nobody sees holds no stream: browsers open six connections to a server, and the seventh tab would stay empty.
  function heed() {
    if (document.hidden) { stop(); return; }
    openedMs = Date.now();
    brokenMs = null;
    listen();
    if (isDue) renew();
  }

  setInterval(() => {
    const now = Date.now();
    if (document.hidden || !events) return;
    if ((brokenMs !== null && now - brokenMs > BROKEN_MS) || now - Math.max(freshMs, openedMs) > SILENT_MS) lose();
    if (now - heardMs > SILENT_MS) { brokenMs ??= now; listen(); }
  }, 1000);

  document.addEventListener("visibilitychange", heed);
  addEventListener("online", () => { if (!document.hidden) listen(); });
  addEventListener("pagehide", stop);
  addEventListener("pageshow", (event) => { if (event.persisted) heed(); });
  if (!document.hidden) listen();
})();

// What runs while an incident is open: counts on between two answers, in the words of recovery.console.rendering.
(() => {
  let madeMs = Date.now();
  function words(seconds) {
    const whole = Math.max(0, Math.floor(seconds));
    if (whole < 120) return `${whole} s`;
    if (whole < 7200) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
    return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  }
  document.addEventListener("page-renewed", () => { madeMs = Date.now(); });
  setInterval(() => {
    for (const one of document.querySelectorAll("[data-age-s]")) one.textContent = words(Number(one.dataset.ageS) + (Date.now() - madeMs) / 1000);
  }, 1000);
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

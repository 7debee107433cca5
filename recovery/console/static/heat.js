// The map of a job's ranks: a cell for each, the slower than its peers the redder. Stand-stills and ends have marks of their
// own. Arrow keys move, and the line below says which rank it is; the table under the map names those that stand out.
"use strict";
(() => {
  const WIDEST = 18, NARROWEST = 4;
  const SLOW = 2.0; // own work over the peers': from here on the colour is the strongest
  let told = null, at = 0, size = 0, columns = 0, isAsking = false, hasFocus = false;

  function colours(element) {
    const style = getComputedStyle(element), read = (name) => style.getPropertyValue(name).trim();
    return { low: read("--heat-low"), mid: read("--heat-mid"), high: read("--heat-high"), none: read("--heat-none"), ink: read("--ink"), failed: read("--failed"), accent: read("--accent") };
  }

  const rgb = (hex) => [1, 3, 5].map((from) => parseInt(hex.slice(from, from + 2), 16));

  function ramp(own) {
    const low = rgb(own.low), mid = rgb(own.mid), high = rgb(own.high), steps = [];
    for (let step = 0; step <= 64; step++) {
      const part = step / 64, [from, to, share] = part < 0.5 ? [low, mid, part * 2] : [mid, high, part * 2 - 1];
      steps.push(`rgb(${from.map((value, place) => Math.round(value + (to[place] - value) * share)).join(" ")})`);
    }
    return steps;
  }

  function build(box) {
    box.replaceChildren();
    const canvas = document.createElement("canvas"), words = document.createElement("output"), scale = document.createElement("p");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-label", "Map of all ranks. Arrow keys move from rank to rank.");
    words.setAttribute("aria-live", "polite");
    scale.className = "scale";
    for (const [kind, text] of [["f1", "like its peers"], ["f2", "1.5 times their work"], ["f3", "2 times or more"], ["f0", "not known"], ["standing", "stands still"], ["failed", "failed"]]) {
      const one = document.createElement("span"), mark = document.createElement("i");
      mark.className = kind;
      one.append(mark, text);
      scale.append(one);
    }
    box.append(canvas, words, scale);
    canvas.addEventListener("keydown", (event) => {
      const next = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + columns, ArrowUp: at - columns, Home: 0, End: told.ranks.length - 1 }[event.key];
      if (next === undefined || next < 0 || next >= told.ranks.length) return;
      event.preventDefault();
      choose(box, next);
    });
    canvas.addEventListener("pointermove", (event) => point(box, event));
    canvas.addEventListener("click", (event) => point(box, event));
    canvas.addEventListener("focus", () => { hasFocus = true; choose(box, at); });
    canvas.addEventListener("blur", () => { hasFocus = false; draw(box); });
  }

  function point(box, event) {
    const column = Math.floor(event.offsetX / size), row = Math.floor(event.offsetY / size), place = row * columns + column;
    if (told && column < columns && place >= 0 && place < told.ranks.length) say(box, place);
  }

  function choose(box, place) {
    at = place;
    draw(box);
    say(box, place);
  }

  function say(box, place) {
    const factor = told.factors[place], age = told.ages_s[place], step = told.steps[place];
    const parts = [`Rank ${told.ranks[place]} on ${told.node_names[told.nodes[place]]}`, told.states[place]];
    if (factor !== null) parts.push(`${factor.toFixed(2)} times its peers' work`);
    if (step !== null) parts.push(`step ${step}`);
    if (age !== null) parts.push(`last sign ${age.toFixed(1)} s ago`);
    box.querySelector("output").textContent = parts.join(", ");
  }

  function draw(box) {
    const canvas = box.querySelector("canvas"), count = told.ranks.length, width = canvas.clientWidth;
    if (!count || !width) return;
    size = Math.max(NARROWEST, Math.min(WIDEST, Math.floor(Math.sqrt((width * 420) / count))));
    columns = Math.max(1, Math.floor(width / size));
    if (columns > 8) columns -= columns % 8; // a node of 8 ranks is not broken in two
    columns = Math.min(columns, Math.max(8, Math.ceil(Math.sqrt(count) / 8) * 32));
    const height = Math.ceil(count / columns) * size, dots = window.devicePixelRatio || 1;
    canvas.height = height * dots;
    canvas.width = width * dots;
    canvas.style.setProperty("height", `${height}px`);
    const pen = canvas.getContext("2d"), own = colours(box), shades = ramp(own), gap = size > 6 ? 1.5 : 0.75;
    pen.scale(dots, dots);
    const byShade = new Map(); // one path for each colour: 16,000 single fills take four times as long
    const marks = [];
    for (let place = 0; place < count; place++) {
      const factor = told.factors[place], state = told.states[place];
      const shade = factor === null || state === "stopped" ? own.none : shades[Math.round(64 * Math.max(0, Math.min(1, (factor - 1) / (SLOW - 1))))];
      let path = byShade.get(shade);
      if (!path) byShade.set(shade, (path = new Path2D()));
      const x = (place % columns) * size, y = Math.floor(place / columns) * size;
      path.rect(x, y, size - gap, size - gap);
      if (state === "standing" || state === "failed") marks.push([x, y, state]);
    }
    for (const [shade, path] of byShade) { pen.fillStyle = shade; pen.fill(path); }
    for (const [x, y, state] of marks) {
      const far = size - gap;
      pen.fillStyle = state === "failed" ? own.failed : own.ink;
      if (state === "failed") { pen.fillRect(x, y, far, far); continue; }
      pen.beginPath(); // a triangle: a line can't be seen where cells have four pixels
      pen.moveTo(x, y);
      pen.lineTo(x, y + far);
      pen.lineTo(x + far, y + far);
      pen.fill();
    }
    if (hasFocus) {
      pen.strokeStyle = own.accent;
      pen.lineWidth = 2;
      pen.strokeRect((at % columns) * size, Math.floor(at / columns) * size, size - gap, size - gap);
    }
    box.dataset.drawn = String(count);
  }

  async function ask() {
    const box = document.getElementById("heat");
    if (!box || isAsking) return;
    isAsking = true;
    try {
      const answer = await fetch(box.dataset.ranks, { cache: "no-store" });
      if (!answer.ok) return;
      told = await answer.json();
      if (at >= told.ranks.length) at = 0;
      if (!box.querySelector("canvas")) build(box);
      draw(box);
    } catch { // the next event asks again, and the line at the top says that the page is not live
    } finally { isAsking = false; }
  }

  ask();
  document.addEventListener("page-renewed", ask);
  addEventListener("resize", () => { const box = document.getElementById("heat"); if (box && told) draw(box); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { const box = document.getElementById("heat"); if (box && told) draw(box); });
})();

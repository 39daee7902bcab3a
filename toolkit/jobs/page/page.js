"use strict";
// Shows the records of a job. Everything that comes from a record is put in as text, never as markup.
(() => {
  const ROW = 58, LONG = 32, SHOWN = { "": "all", review: "review", error: "failed", ok: "fine" };
  const HUES = [210, 28, 150, 330, 265, 95, 0, 185, 50, 300];
  const ODD = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\u00ad\u180e\u{e0000}-\u{e007f}]/u;
  const at = (id) => document.getElementById(id);
  const about = JSON.parse(at("about").textContent);
  const records = at("data").textContent.split("\n").filter(Boolean).map((line) => JSON.parse(line));
  const list = at("list"), rows = at("rows"), article = at("record"), search = at("search");
  const chosen = { kind: "", words: "", field: "", current: 0 };
  let visible = records;

  function make(tag, name, ...children) {
    const element = document.createElement(tag);
    if (name) element.className = name;
    element.append(...children.filter((each) => each !== null && each !== undefined));
    return element;
  }

  // Text in which characters that cannot be seen, or turn what follows around, are spelled out.
  function safe(text) {
    const box = document.createDocumentFragment();
    let plain = "";
    for (const char of text) {
      if (ODD.test(char)) {
        box.append(plain, make("span", "odd", "U+" + char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")));
        plain = "";
      } else plain += char;
    }
    box.append(plain);
    return box;
  }

  const short = (text, most) => (text.length > most ? text.slice(0, most) + "\u2026" : text);
  const pretty = (pointer) => (pointer === "" ? "(whole)" : pointer.slice(1).split("/").map((part) => part.replace(/~1/g, "/").replace(/~0/g, "~")).join(" \u203a "));
  const general = (pointer) => pointer.replace(/\/\d+(?=\/|$)/g, "/*");
  const said = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const percent = (number) => (number === null || number === undefined ? "" : number >= 0.9995 ? "1.00" : number.toFixed(number < 0.01 ? 4 : 2));
  const least = (record) => record.fields.reduce((low, field) => (field.sure !== null && (low === null || field.sure < low) ? field.sure : low), null);
  const hay = (record) => (record.hay ??= [record.id, record.where, record.text, JSON.stringify(record.value), record.reason, record.raw].filter(Boolean).join("\n").toLowerCase());

  const hues = new Map();
  for (const record of records)
    for (const field of record.fields) {
      const name = general(field.path);
      if (!hues.has(name)) hues.set(name, HUES[hues.size % HUES.length]);
    }
  const tint = (element, path) => (element.style.setProperty("--h", hues.get(general(path)) ?? 210), element);

  // --- which records ---------------------------------------------------------------------------------------------------

  function fits(record) {
    if (chosen.kind && record.kind !== chosen.kind) return false;
    if (chosen.words && !hay(record).includes(chosen.words)) return false;
    if (!chosen.field) return true;
    const found = record.fields.filter((field) => general(field.path) === chosen.field);
    const state = at("state").value;
    if (state === "missing") return record.kind !== "error" && !found.length;
    if (state === "unsure") return found.some((field) => field.sure !== null && field.sure < Number(at("below").value));
    if (state === "ungrounded") return found.some((field) => field.span === null);
    return found.length > 0;
  }

  function filter() {
    const before = visible[chosen.current];
    visible = records.filter(fits);
    const kept = visible.indexOf(before);
    rows.style.height = visible.length * ROW + "px";
    at("none").hidden = visible.length > 0;
    for (const tab of at("tabs").children) tab.setAttribute("aria-selected", String(tab.dataset.kind === chosen.kind));
    choose(kept >= 0 ? kept : 0);
  }

  function tabs() {
    const counts = { "": records.length, review: 0, error: 0, ok: 0 };
    for (const record of records) counts[record.kind] += 1;
    for (const [kind, name] of Object.entries(SHOWN)) {
      const tab = make("button", kind, name, make("b", "", counts[kind].toLocaleString("en")));
      tab.type = "button";
      tab.dataset.kind = kind;
      tab.setAttribute("role", "tab");
      tab.addEventListener("click", () => ((chosen.kind = kind), filter()));
      at("tabs").append(tab);
    }
    if (about.left) at("tabs").append(make("span", "quiet", `not on this page (--limit): ${about.left.toLocaleString("en")}`));
  }

  // --- the list: only rows in sight are in the page --------------------------------------------------------------------

  function draw() {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 5);
    const last = Math.min(visible.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 5);
    rows.replaceChildren(...visible.slice(first, last).map((record, step) => row(record, first + step)));
  }

  function row(record, place) {
    const low = least(record);
    const peek = record.kind === "error" ? record.stage + ": " + record.reason : record.fields.map((field) => said(field.value)).join(" \u00b7 ");
    const line = make("div", "row",
      make("div", "", make("span", "dot " + record.kind), make("span", "id", safe(short(record.id, 80))), low === null ? null : make("span", "least", percent(low))),
      make("span", "peek", safe(short(peek, 140))));
    line.id = "row-" + place;
    line.style.top = place * ROW + "px";
    line.setAttribute("role", "option");
    line.setAttribute("aria-selected", String(place === chosen.current));
    line.setAttribute("aria-setsize", String(visible.length));
    line.setAttribute("aria-posinset", String(place + 1));
    line.addEventListener("click", () => choose(place));
    return line;
  }

  function choose(place) {
    chosen.current = Math.max(0, Math.min(place, visible.length - 1));
    const top = chosen.current * ROW;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
    draw();
    list.setAttribute("aria-activedescendant", "row-" + chosen.current);
    const record = visible[chosen.current];
    article.replaceChildren(...(record ? shown(record) : []));
    article.scrollTop = 0;
    if (record) history.replaceState(null, "", "#" + record.index);
  }

  function step(by, wanted) {
    let place = chosen.current + by;
    while (wanted && visible[place] && !wanted(visible[place])) place += by;
    if (visible[place]) choose(place);
  }

  // --- one record ------------------------------------------------------------------------------------------------------

  function shown(record) {
    const status = { ok: "valid", review: "needs review", error: "failed: " + record.stage }[record.kind];
    const head = make("div", "head", make("h2", "", safe(record.id)), make("span", "badge " + record.kind, status),
      make("span", "quiet", safe(`record ${record.index + 1} \u00b7 ${record.where ?? ""}`)),
      record.score === null ? null : make("span", "quiet", `score ${record.score.toFixed(3)}`),
      record.seconds === null ? null : make("span", "quiet", `${record.seconds.toFixed(2)} s`));
    const parts = [head, notes(record), make("div", "sides", source(record), record.kind === "error" ? raw(record) : fields(record))];
    if (record.alternatives.length > 1) parts.push(alternatives(record));
    parts.push(rest(record));
    return parts.filter(Boolean);
  }

  function notes(record) {
    if (record.kind === "error") return make("p", "note error", safe(record.reason));
    if (!record.reasons.length) return null;
    return make("div", "note", make("ul", "", ...record.reasons.map((reason) => make("li", "", safe(reason)))));
  }

  function source(record) {
    const box = make("section", "", make("h3", "", "Text", make("span", "", record.text === null ? "" : `${record.length.toLocaleString("en")} characters`)));
    if (record.text === null) {
      box.append(make("p", "text quiet", about.source));
      return box;
    }
    const text = make("p", "text");
    text.dir = "auto";
    text.append(...marked(record.text, record.fields));
    if (record.length > record.shown) text.append(make("span", "ends", ` \u2026 ${(record.length - record.shown).toLocaleString("en")} characters more`));
    box.append(text);
    return box;
  }

  // The text cut wherever a span or a search hit begins or ends; a piece belongs to every span it lies in.
  function marked(text, all) {
    const spans = all.filter((field) => field.span).map((field) => ({ start: field.span[0], end: field.span[1], path: field.path }));
    const hits = chosen.words ? found(text, chosen.words) : [];
    const cuts = new Set([0, text.length]);
    for (const each of [...spans, ...hits]) cuts.add(Math.min(each.start, text.length)).add(Math.min(each.end, text.length));
    const places = [...cuts].sort((a, b) => a - b);
    return places.slice(0, -1).map((start, place) => {
      const end = places[place + 1], inside = (each) => each.start <= start && end <= each.end;
      const here = spans.filter(inside);
      let piece = safe(text.slice(start, end));
      if (hits.some(inside)) piece = make("mark", "hit", piece);
      if (!here.length) return piece;
      const mark = tint(make("span", "at", piece), here[0].path);
      mark.dataset.paths = JSON.stringify(here.map((each) => each.path));
      mark.title = here.map((each) => pretty(each.path)).join(", ");
      mark.addEventListener("mouseenter", () => light(here.map((each) => each.path), false));
      mark.addEventListener("mouseleave", () => light([], false));
      return mark;
    });
  }

  function found(text, words) {
    const low = text.toLowerCase(), hits = [];
    for (let start = low.indexOf(words); start >= 0 && hits.length < 1000; start = low.indexOf(words, start + words.length)) hits.push({ start, end: start + words.length });
    return low.length === text.length ? hits : [];
  }

  function light(paths, scroll) {
    for (const line of article.querySelectorAll("tr.field")) line.classList.toggle("lit", paths.includes(line.dataset.path));
    let first = null;
    for (const mark of article.querySelectorAll(".at")) {
      const lit = JSON.parse(mark.dataset.paths).some((path) => paths.includes(path));
      mark.classList.toggle("lit", lit);
      if (lit) first ??= mark;
    }
    if (scroll && first) first.scrollIntoView({ block: "nearest" });
  }

  function fields(record) {
    const table = make("table");
    for (const field of record.fields) {
      const swatch = tint(make("i", field.span ? "" : "none"), field.path);
      const line = make("tr", field.flagged ? "field flagged" : "field", make("td", pretty(field.path).length > LONG ? "name long" : "name", swatch, safe(pretty(field.path))), cell(field.value), sure(field), stands(field));
      line.dataset.path = field.path;
      line.addEventListener("mouseenter", () => light([field.path], true));
      line.addEventListener("mouseleave", () => light([], false));
      table.append(line);
    }
    if (record.more) table.append(make("tr", "", make("td", "quiet", `${record.more} fields more`)));
    return make("section", "", make("h3", "", "Value", make("span", "", "confidence \u00b7 in the text")), make("div", "scroll", table));
  }

  function cell(value) {
    const kind = typeof value === "string" ? (value === "" ? "empty" : "") : value !== null && typeof value === "object" ? "empty" : typeof value === "number" ? "number" : "word";
    const box = make("td", "value " + kind, value === "" ? "(empty)" : safe(said(value)));
    box.dir = "auto";
    return box;
  }

  function sure(field) {
    if (field.sure === null) return make("td", "sure");
    const fill = make("b");
    fill.style.width = 100 * Math.max(0, Math.min(1, field.sure)) + "%";
    return make("td", "sure" + (field.sure < 0.5 ? " low" : field.sure < 0.8 ? " mid" : ""), make("span", "bar", fill), percent(field.sure));
  }

  function stands(field) {
    if (field.span === undefined) return make("td", "where");
    return field.span ? make("td", "where", field.how ?? "found") : make("td", field.flagged ? "where no" : "where", "not in the text");
  }

  function alternatives(record) {
    const table = make("table", "", make("tr", "", make("th", "name"), make("th", "sure", "score"), make("th", "", "what is different")));
    const [best] = record.alternatives;
    record.alternatives.forEach((other, place) => {
      const differs = make("td", "value");
      if (place === 0) differs.append(make("span", "quiet", "the answer"));
      else if (!other.valid) differs.append(make("span", "differs", "not valid "), safe(other.why));
      const parts = place && other.valid ? differences(best.value, other.value, "") : [];
      for (const [path, value] of parts.slice(0, 12)) differs.append(make("div", "", make("span", "name", safe(pretty(path))), " ", make("span", "differs", safe(value === undefined ? "absent" : said(value)))));
      table.append(make("tr", place ? "" : "best", make("td", "name", String(place + 1)), make("td", "sure", other.score === null ? "" : other.score.toFixed(3)), differs));
    });
    return make("section", "", make("h3", "", "Alternatives", make("span", "", "log-probability, normalised by the job's alpha")), make("div", "scroll", table));
  }

  function differences(one, other, path) {
    const both = one !== null && other !== null && typeof one === "object" && typeof other === "object" && Array.isArray(one) === Array.isArray(other);
    if (!both) return JSON.stringify(one) === JSON.stringify(other) ? [] : [[path, other]];
    return [...new Set([...Object.keys(one), ...Object.keys(other)])].flatMap((key) => differences(one[key], other[key], path + "/" + key.replace(/~/g, "~0").replace(/\//g, "~1")));
  }

  const raw = (record) => make("section", "", make("h3", "", "What came"), make("pre", "", safe(record.raw)));

  function rest(record) {
    const open = make("details", "", make("summary", "", "The line, as JSON"));
    open.addEventListener("toggle", () => open.children.length > 1 || open.append(make("pre", "", safe(JSON.stringify({ id: record.id, value: record.value, ...record.rest }, null, 2)))));
    return make("section", "", open);
  }

  // --- keys and the bar ------------------------------------------------------------------------------------------------

  const flagged = (record) => record.kind !== "ok";
  const kind = (name) => () => ((chosen.kind = name), filter());
  const KEYS = {
    j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1),
    n: () => step(1, flagged), p: () => step(-1, flagged), g: () => choose(0), G: () => choose(visible.length - 1),
    1: kind(""), 2: kind("review"), 3: kind("error"), 4: kind("ok"),
    "/": () => (search.focus(), search.select()), f: () => at("field").focus(), t: () => dark(), "?": () => at("help").showModal(),
    Escape: () => ((search.value = chosen.words = at("field").value = chosen.field = chosen.kind = ""), states(), filter()),
  };

  function dark() {
    const root = document.documentElement;
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  }

  function states() {
    at("state-box").hidden = !chosen.field;
    at("below-box").hidden = !chosen.field || at("state").value !== "unsure";
  }

  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.ctrlKey || event.metaKey || event.altKey || at("help").open) return;
    if (typing && event.key !== "Escape" && !(event.key === "Enter" && event.target === search)) return;
    if (typing) event.target.blur();
    const action = Object.hasOwn(KEYS, event.key) ? KEYS[event.key] : null;
    if (action) (event.preventDefault(), action());
  });
  let wait = 0;
  search.addEventListener("input", () => (clearTimeout(wait), (wait = setTimeout(() => ((chosen.words = search.value.trim().toLowerCase()), filter()), 120))));
  at("field").addEventListener("change", () => ((chosen.field = at("field").value), states(), filter()));
  for (const name of ["state", "below"]) at(name).addEventListener("input", () => (states(), filter()));
  at("theme").addEventListener("click", dark);
  at("ask").addEventListener("click", () => at("help").showModal());
  list.addEventListener("scroll", () => requestAnimationFrame(draw));
  window.addEventListener("resize", draw);

  if (matchMedia("(prefers-color-scheme: dark)").matches) dark();
  for (const name of hues.keys()) {
    const option = make("option", "", safe(short(pretty(name), 60)));
    option.value = name;
    at("field").append(option);
  }
  const asked = records.findIndex((record) => "#" + record.index === location.hash);
  tabs();
  filter();
  choose(Math.max(0, asked));
})();

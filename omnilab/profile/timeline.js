// Draws spans as a Gantt: a row a loop, a curve a chunk, one or two trials above each other on one time axis.
// Needs nothing from outside. The data is what omnilab.profile.timeline.timeline_data gives.
//
// Where a bar is narrower than a pixel, or stands for several spans, its row shows the share of each pixel's time that
// each name was busy: full height is all of it. So nothing that is short looks longer than it was.

const FAMILIES = {
  forward: "#0072b2", vocode: "#009e73", sample: "#56b4e9", embed: "#3f51b5",
  build: "#e69f00", save: "#f0c94a", encode: "#b8860b", put: "#d55e00", get: "#cc79a7", copy: "#8d6e63",
  accumulate: "#a05195", merge: "#c2185b",
  pickle: "#7d6b3a", unpickle: "#b39c5d", transport: "#8a8f98",
  schedule: "#5b7083", update_states: "#7ba7a0", events: "#7e57c2", wait: "#b9bec6",
};
const SPARE = ["#4e79a7", "#b07aa1", "#59a14f", "#9c755f", "#edc948", "#e15759"];
const LIGHT = { paper: "#ffffff", ink: "#222222", soft: "#5c5c5c", line: "#e2e2e0", band: "#f6f6f4", accent: "#b3261e" };
const DARK = { paper: "#16181a", ink: "#dddddd", soft: "#a6a6a6", line: "#303438", band: "#1c1f22", accent: "#ff9b57" };
const LEFT = 132, RIGHT = 48, AXIS = 26, HEAD = 24, ROW = 18, INNER = 10, GAP = 4, LEAST = 2; // CSS pixels
const ALONE = 1.5; // pixels from which a span is drawn by itself

const STYLE = `
:host { display: block; }
.timeline { color: var(--ink); background: var(--paper); font: 13px/1.4 system-ui, sans-serif; position: relative; }
.bar { display: flex; flex-wrap: wrap; gap: 4px 10px; align-items: center; margin: 0 0 6px; }
.bar fieldset { border: 0; margin: 0; padding: 0; display: flex; flex-wrap: wrap; gap: 2px 8px; }
button, select { font: inherit; color: inherit; background: var(--band); border: 1px solid var(--line);
  border-radius: 4px; padding: 1px 8px; }
button { cursor: pointer; min-width: 28px; }
button[aria-expanded=true] { border-color: var(--ink); }
label { position: relative; display: inline-flex; align-items: center; gap: 4px; cursor: pointer; white-space: nowrap; }
label.off { color: var(--soft); text-decoration: line-through; }
label input { position: absolute; inset: 0; width: 100%; height: 100%; margin: 0; opacity: 0; cursor: pointer; }
label i { width: 11px; height: 11px; border-radius: 2px; flex: none; }
label.off i { opacity: .25; }
label:focus-within { outline: 2px solid var(--accent); outline-offset: 1px; border-radius: 3px; }
.stage { flex-direction: row; border: 1px solid var(--line); border-radius: 10px; padding: 0 8px; }
.canvas { position: relative; touch-action: pan-y; }
.canvas:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
canvas { display: block; width: 100%; }
canvas + canvas { position: absolute; inset: 0; pointer-events: none; }
.tip { position: absolute; z-index: 2; max-width: 340px; padding: 6px 9px; background: var(--paper); color: var(--ink);
  border: 1px solid var(--soft); border-radius: 4px; box-shadow: 0 2px 8px rgb(0 0 0 / .25); pointer-events: none;
  font-variant-numeric: tabular-nums; white-space: pre-line; overflow-wrap: anywhere; }
.tip b { display: block; }
.tip.pinned { border-color: var(--accent); }
.said { color: var(--soft); margin: 4px 0 0; font-variant-numeric: tabular-nums; }
.table { overflow: auto; max-height: 420px; margin: 8px 0 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 2px 10px 2px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
th[scope=row] { text-align: left; font-weight: 400; }
thead { position: sticky; top: 0; background: var(--paper); }
thead th { color: var(--soft); font-weight: 400; }
th[scope=colgroup] { color: var(--ink); font-weight: 600; padding-left: 24px; }
th:first-child, th:nth-child(2):not([colspan]) { text-align: left; }
`;

// ---- words ----

const UNITS = [[1e6, "s"], [1e3, "ms"], [1, "µs"]];

function time(us, digits = 4) {
  const [scale, unit] = UNITS.find(([scale]) => Math.abs(us) >= scale) ?? UNITS[2];
  if (us === 0) return "0 s";
  return `${Number((us / scale).toPrecision(digits))} ${unit}`;
}

// The same unit and as many decimals as a step of the axis needs.
function timeOnAxis(us, step) {
  const [scale, unit] = UNITS.find(([scale]) => step >= scale) ?? UNITS[2];
  const decimals = Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9));
  return `${(us / scale).toFixed(decimals)} ${unit}`;
}

function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  const [scale, unit] = bytes >= 1e9 ? [1e9, "GB"] : bytes >= 1e6 ? [1e6, "MB"] : [1e3, "kB"];
  return `${(bytes / scale).toFixed(bytes >= 100 * scale ? 0 : 1)} ${unit}`;
}

const number = (value) => value.toLocaleString("en-US");
const several = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

function spare(name) {
  let sum = 0;
  for (const letter of name) sum = (sum * 31 + letter.codePointAt(0)) % 9973;
  return SPARE[sum % SPARE.length];
}

const known = new Map();

export function colorOf(name, dark) {
  const key = `${name} ${dark}`;
  if (!known.has(key)) known.set(key, mixed(name, dark));
  return known.get(key);
}

function mixed(name, dark) {
  const color = FAMILIES[name] ?? spare(name);
  if (!dark) return color;
  const lighter = [1, 3, 5].map((at) => Math.round(Number.parseInt(color.slice(at, at + 2), 16) * 0.82 + 46));
  return `#${lighter.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

function inkOn(color) {
  const [red, green, blue] = [1, 3, 5].map((at) => Number.parseInt(color.slice(at, at + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#111111" : "#ffffff";
}

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// ---- a panel's spans, found by time ----

class Spans {
  constructor(data) {
    const { track, name, request, chunk, start_us, length_us, busy_us, bytes, count, depth } = data.spans;
    Object.assign(this, { data, track, name, request, chunk, start: start_us, length: length_us, bytes });
    this.busy = busy_us ?? length_us;
    this.count = count ?? start_us.map(() => 1);
    this.depth = depth ?? start_us.map(() => 0);
    [this.from, this.to] = data.window_us;
    this.stages = data.tracks.map((text) => text.split("/")[0]);
    this.#index();
    this.deepest = data.tracks.map((_, at) => Math.max(0, ...this.of[at].map((span) => this.depth[span])));
    this.arrowsOf = new Map(); // by span
    data.arrows.from.forEach((from, arrow) => {
      for (const span of [from, data.arrows.to[arrow]]) {
        if (span >= 0) this.arrowsOf.set(span, [...(this.arrowsOf.get(span) ?? []), arrow]);
      }
    });
  }

  // By track: its spans as they start, and the latest end up to each, which never falls.
  #index() {
    this.of = this.data.tracks.map(() => []);
    this.track.forEach((track, span) => this.of[track].push(span));
    for (const spans of this.of) spans.sort((one, other) => this.start[one] - this.start[other]);
    this.reach = this.of.map((spans) => {
      let reach = -Infinity;
      return Float64Array.from(spans, (span) => (reach = Math.max(reach, this.start[span] + this.length[span])));
    });
  }

  end(span) {
    return this.start[span] + this.length[span];
  }

  // The places in a track's list between which all are that touch a window.
  within(track, from, to) {
    const [spans, reach] = [this.of[track], this.reach[track]];
    const low = firstPlace(spans.length, (place) => reach[place] >= from);
    return [low, firstPlace(spans.length, (place) => this.start[spans[place]] > to)];
  }

  // How much of a bar's busy time a window holds: exact for one span, in proportion where it stands for several.
  busyWithin(span, from, to) {
    const [start, length] = [this.start[span], this.length[span]];
    if (start >= from && start + length <= to) return this.busy[span];
    const part = Math.min(start + length, to) - Math.max(start, from);
    return length > 0 ? (this.busy[span] * Math.max(0, part)) / length : 0;
  }
}

function firstPlace(length, holds) {
  let [low, high] = [0, length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

// ---- the timeline ----

class Timeline {
  constructor(element, { panels, load, dark }) {
    Object.assign(this, { element, load, asked: dark });
    this.host = element.appendChild(document.createElement("div"));
    this.off = { stage: new Set(), name: new Set(), arrows: false };
    this.request = 0; // its place among the requests; 0 is all of them
    this.loading = 0;
    this.trouble = "";
    this.stop = new AbortController();
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.#build();
    this.#theme();
    this.#listen();
    this.set(panels);
  }

  #build() {
    const root = this.host.attachShadow({ mode: "open" });
    const sheet = new CSSStyleSheet(); // no inline style: a page may forbid them
    sheet.replaceSync(STYLE);
    root.adoptedStyleSheets = [sheet];
    const button = (text, title, act) => make("button", { type: "button", textContent: text, title, onclick: act });
    this.tableButton = button("Table", "busy time of the window shown, as a table", () => this.#toggleTable());
    this.tableButton.ariaExpanded = "false";
    this.requests = make("select", { title: "spans of one request, and those that belong to none: a batch's" });
    this.requests.ariaLabel = "Request";
    this.requests.onchange = () => this.#choose(Number(this.requests.value));
    this.chips = { stage: make("fieldset", { ariaLabel: "Stages" }), name: make("fieldset", { ariaLabel: "Spans" }) };
    const bar = make("div", { className: "bar" },
      button("−", "zoom out (key -)", () => this.#zoom(2)), button("+", "zoom in (key +)", () => this.#zoom(0.5)),
      button("All", "all of it (key 0, double-click)", () => this.all()), this.tableButton, this.requests,
      this.chips.stage, this.chips.name);
    this.canvas = make("canvas");
    this.canvas.setAttribute("role", "img");
    this.over = make("canvas");
    this.area = make("div", { className: "canvas", tabIndex: 0 }, this.canvas, this.over);
    this.tip = make("div", { className: "tip", hidden: true });
    this.area.append(this.tip);
    this.said = make("p", { className: "said" });
    this.said.setAttribute("role", "status");
    this.table = make("div", { className: "table", hidden: true, tabIndex: 0 });
    this.box = make("div", { className: "timeline" }, bar, this.area, this.said, this.table);
    root.append(this.box);
  }

  // ---- data and view ----

  set(panels) {
    this.#forget();
    this.coarse = panels.map((data) => new Spans(data));
    this.fine = panels.map(() => null);
    [this.hovered, this.pinned] = [null, null];
    this.#controls();
    this.whole = this.#whole();
    this.view = [...this.#first()];
    this.#changed();
  }

  // All that can be shown: the trials where finer data can be asked for, else what there is.
  #whole() {
    const windows = this.load ? this.coarse.map(({ data }) => [0, data.length_us]) : this.coarse.map((p) => [p.from, p.to]);
    return this.#around(windows);
  }

  #first() {
    return this.#around(this.coarse.map((panel) => [panel.from, panel.to]));
  }

  #around(windows) {
    const [from, to] = [Math.min(...windows.map(([low]) => low)), Math.max(...windows.map(([, high]) => high))];
    return windows.length && to > from ? [from, to] : [Math.min(from, 0) || 0, 1];
  }

  show(from, to) {
    const [low, high] = this.whole;
    const length = Math.min(Math.max(to - from, 0.05), high - low); // no clock tells less than that apart
    const start = Math.min(Math.max(from, low), high - length);
    this.view = [start, start + length];
    this.#changed();
  }

  all() {
    this.show(...this.whole);
  }

  #zoom(factor, at = (this.view[0] + this.view[1]) / 2) {
    const [from, to] = this.view;
    this.show(at - (at - from) * factor, at + (to - at) * factor);
  }

  #pan(pixels) {
    const by = (pixels / this.#plotWidth()) * (this.view[1] - this.view[0]);
    this.show(this.view[0] + by, this.view[1] + by);
  }

  // What was asked for is no longer wanted: an answer that still comes is dropped.
  #forget() {
    this.turn = (this.turn ?? 0) + 1;
    this.loading = 0;
  }

  #choose(request) {
    this.#forget();
    this.request = request;
    this.fine = this.coarse.map(() => null);
    [this.hovered, this.pinned] = [null, null];
    this.#changed();
  }

  // The data of a panel that is drawn: finer one where it covers the window.
  panel(index) {
    const fine = this.fine[index];
    return fine && fine.from <= this.view[0] && fine.to >= this.view[1] ? fine : this.coarse[index];
  }

  #changed() {
    this.#draw();
    clearTimeout(this.timer);
    if (this.load) this.timer = setTimeout(() => this.#fetch(), 150);
  }

  async #fetch() {
    this.#forget();
    const turn = this.turn;
    const wanted = this.coarse.map((_, index) => index).filter((index) => this.#couldBeFiner(index));
    if (!wanted.length) return this.#say();
    const [from, to] = this.view;
    const margin = (to - from) / 2; // so that a short way to either side needs nothing new
    const low = Math.max(this.whole[0], from - margin), high = Math.min(this.whole[1], to + margin);
    this.loading = wanted.length;
    this.#say();
    for (const index of wanted) {
      try {
        const data = await this.load(index, low, high, this.coarse[index].data.requests[this.request] || null);
        if (turn !== this.turn || this.stop.signal.aborted) return;
        if (data) this.fine[index] = new Spans({ ...data, window_us: [low, high] });
        this.trouble = "";
      } catch (error) {
        if (turn !== this.turn) return;
        this.trouble = `finer data did not come: ${error?.message ?? error}`;
      }
      this.loading -= 1;
      this.#controls();
      this.#draw();
    }
  }

  #couldBeFiner(index) {
    const [from, to] = this.view, panel = this.panel(index), length = Math.min(panel.to, this.whole[1]) - panel.from;
    if (this.request && panel === this.coarse[index] && panel.data.merged) return true;
    const covered = panel.from <= from && panel.to >= Math.min(to, panel.data.length_us);
    return !covered || (panel.data.merged > 0 && to - from < length * 0.4);
  }

  // ---- what is shown ----

  #filter(panel) {
    const names = panel.data.names.map((name) => !this.off.name.has(name));
    const stages = panel.stages.map((stage) => !this.off.stage.has(stage));
    const { request } = this;
    return (span) => names[panel.name[span]] && stages[panel.track[span]]
      && (!request || panel.request[span] === request || panel.request[span] <= 0);
  }

  #controls() {
    const every = (list) => [...new Set(this.coarse.flatMap(list))];
    const names = Object.keys(FAMILIES), place = (name) => (names.indexOf(name) + names.length + 1) % (names.length + 1);
    const found = every((panel) => panel.data.names).sort((one, other) => place(one) - place(other));
    this.#chips("stage", every((panel) => panel.stages));
    this.#chips("name", found);
    this.#arrowChip();
    const most = Math.max(0, ...this.coarse.map((panel) => panel.data.requests.length - 1));
    if (this.request > most) this.request = 0;
    this.requests.replaceChildren(...Array.from({ length: most + 1 }, (_, value) => this.#option(value)));
    this.requests.value = this.request;
    this.requests.hidden = most < 2;
  }

  // A request is the same one in both panels by its place: its id counts on from trial to trial.
  #option(value) {
    const ids = new Set(this.coarse.map((panel) => panel.data.requests[value]).filter(Boolean));
    return make("option", { value, textContent: value ? [...ids].join(" / ") : "all requests" });
  }

  #chips(kind, values) {
    this.chips[kind].replaceChildren(...values.map((value) => this.#chip(kind, value)));
  }

  #chip(kind, value) {
    const off = this.off[kind], input = make("input", { type: "checkbox", checked: !off.has(value) });
    const swatch = kind === "name" ? [make("i")] : [];
    const label = make("label", { title: `show ${value}; with shift, only ${value}` }, input, ...swatch, value);
    if (kind === "stage") label.classList.add("stage");
    for (const i of swatch) i.style.background = this.#color(value);
    label.classList.toggle("off", off.has(value));
    label.onclick = (event) => {
      if (event.shiftKey) this.#only(kind, value, event);
    };
    input.onchange = () => this.#toggle(kind, value, input.checked);
    return label;
  }

  #only(kind, value, event) {
    event.preventDefault();
    const others = [...this.chips[kind].querySelectorAll("label")].map((label) => label.textContent);
    const already = others.every((other) => this.off[kind].has(other) === (other !== value));
    this.off[kind] = new Set(already ? [] : others.filter((other) => other !== value));
    this.#controls();
    this.#draw();
  }

  #toggle(kind, value, on) {
    if (on) this.off[kind].delete(value);
    else this.off[kind].add(value);
    for (const label of this.chips[kind].querySelectorAll("label")) {
      label.classList.toggle("off", this.off[kind].has(label.textContent));
    }
    this.#draw();
  }

  #arrowChip() {
    const input = make("input", { type: "checkbox", checked: !this.off.arrows });
    const label = make("label", { className: "stage", title: "a curve a chunk, from its put to its get" }, input, "chunks");
    label.classList.toggle("off", this.off.arrows);
    input.onchange = () => {
      this.off.arrows = !input.checked;
      label.classList.toggle("off", this.off.arrows);
      this.#draw();
    };
    this.chips.stage.append(label);
  }

  #color(name) {
    return colorOf(name, this.dark);
  }

  #theme() {
    this.dark = this.asked ?? this.scheme.matches;
    this.colors = this.dark ? DARK : LIGHT;
    for (const [name, value] of Object.entries(this.colors)) this.box.style.setProperty(`--${name}`, value);
    if (!this.coarse) return;
    this.#controls();
    this.#draw();
  }

  // ---- layout: CSS pixels ----

  #plotWidth() {
    return Math.max(10, this.width - LEFT - RIGHT);
  }

  x(us) {
    return LEFT + ((us - this.view[0]) / (this.view[1] - this.view[0])) * this.#plotWidth();
  }

  #at(x) {
    return this.view[0] + ((x - LEFT) / this.#plotWidth()) * (this.view[1] - this.view[0]);
  }

  // Rows by panel and track; a stage that is filtered out takes no room.
  #layout() {
    let y = AXIS;
    this.rows = this.coarse.map((coarse, index) => {
      const panel = this.panel(index), top = y;
      y += HEAD;
      const tracks = coarse.data.tracks.map((text, track) => {
        if (this.off.stage.has(coarse.stages[track])) return null;
        const deepest = Math.max(coarse.deepest[track], panel.deepest[track] ?? 0);
        const row = { text, track, y, height: ROW + deepest * INNER };
        y += row.height + GAP;
        return row;
      });
      y += 6;
      return { top, bottom: y, tracks };
    });
    this.height = Math.max(y, AXIS + 40);
  }

  #lane(row, depth) {
    return depth === 0 ? [row.y, ROW] : [row.y + ROW + (depth - 1) * INNER + 1, INNER - 1];
  }

  // Where a span is drawn, for whoever wants to point at it.
  where(index, span) {
    const panel = this.panel(index), row = this.rows[index].tracks[panel.track[span]];
    if (!row) return null;
    const [y, height] = this.#lane(row, panel.depth[span]), x = this.x(panel.start[span]);
    const color = this.#color(panel.data.names[panel.name[span]]);
    return { x, y, width: this.x(panel.end(span)) - x, height, color };
  }

  // ---- drawing ----

  #draw() {
    this.pending ??= requestAnimationFrame(() => {
      this.pending = null;
      this.#paint();
    });
  }

  #paint() {
    this.width = this.area.clientWidth;
    if (!this.width || this.stop.signal.aborted) return; // hidden: drawn when it gets a size
    const began = performance.now();
    this.#layout();
    const context = this.#prepared(this.canvas);
    context.fillStyle = this.colors.paper;
    context.fillRect(0, 0, this.width, this.height);
    this.#drawAxis(context);
    this.#drawBusyTitle(context);
    this.shown = this.coarse.map((_, index) => this.#drawPanel(context, index));
    if (!this.off.arrows) this.coarse.forEach((_, index) => this.#drawArrows(context, index));
    this.#paintOver();
    this.element.dataset.drawMs = (performance.now() - began).toFixed(2);
    this.#say();
    if (!this.table.hidden) this.#fillTable();
    this.element.dataset.ready = "1";
  }

  #prepared(canvas) {
    const scale = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(this.width * scale), Math.round(this.height * scale)];
    if (canvas.width !== width || canvas.height !== height) {
      [canvas.width, canvas.height] = [width, height];
      canvas.style.height = `${this.height}px`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    return context;
  }

  #drawAxis(context) {
    const [from, to] = this.view, step = axisStep((to - from) / Math.max(2, this.#plotWidth() / 110));
    context.textAlign = "center";
    for (let tick = Math.ceil(from / step - 1e-9); tick * step <= to * (1 + 1e-12); tick += 1) {
      const x = Math.round(this.x(tick * step)) + 0.5;
      context.fillStyle = this.colors.line;
      context.fillRect(x, AXIS - 5, 1, this.height);
      context.fillStyle = this.colors.soft;
      if (x < this.width - RIGHT - 16) context.fillText(timeOnAxis(tick * step, step), x, AXIS / 2 - 1);
    }
  }

  #drawBusyTitle(context) {
    context.fillStyle = this.colors.soft;
    context.textAlign = "right";
    context.fillText("busy", this.width - 4, AXIS / 2 - 1);
  }

  #drawPanel(context, index) {
    const panel = this.panel(index), rows = this.rows[index], keep = this.#filter(panel);
    this.#drawHead(context, index);
    const shown = { bars: 0, spans: 0 };
    let before = "", band = false;
    for (const row of rows.tracks) {
      if (!row) continue;
      const [stage, loop] = row.text.split("/");
      if (stage !== before) band = !band;
      this.#drawLabel(context, row, stage === before ? "" : stage, loop, band);
      before = stage;
      const busy = this.#drawTrack(context, panel, row, keep, shown);
      context.fillStyle = this.colors.soft;
      context.textAlign = "right";
      const share = (100 * busy) / (Math.min(this.view[1], panel.data.length_us) - this.view[0]);
      if (busy > 0) context.fillText(`${share < 9.95 ? share.toFixed(1) : Math.round(share)} %`, this.width - 4, row.y + ROW / 2);
    }
    return shown;
  }

  #drawHead(context, index) {
    const { data } = this.coarse[index], { top } = this.rows[index];
    context.textAlign = "left";
    context.fillStyle = this.colors.ink;
    context.font = "600 12px system-ui, sans-serif";
    context.fillText(data.label, 2, top + HEAD / 2);
    const after = 2 + widthOf(context, data.label) + 14, to = this.x(data.length_us);
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = data.lost ? this.colors.accent : this.colors.soft;
    context.fillText(headline(data), after, top + HEAD / 2);
    context.fillStyle = this.colors.line;
    context.fillRect(0, top, this.width, 1);
    if (to > LEFT && to < this.width - RIGHT) { // where the trial ended
      context.fillStyle = this.colors.soft;
      context.fillRect(Math.round(to), top + HEAD, 1, this.rows[index].bottom - top - HEAD - 6);
    }
  }

  #drawLabel(context, row, stage, loop, band) {
    context.fillStyle = band ? this.colors.band : this.colors.paper;
    context.globalAlpha = 0.75;
    context.fillRect(0, row.y - GAP / 2, this.width, row.height + GAP);
    context.globalAlpha = 1;
    context.fillStyle = this.colors.ink;
    context.textAlign = "left";
    context.fillText(stage, 2, row.y + ROW / 2);
    context.fillStyle = this.colors.soft;
    context.textAlign = "right";
    context.fillText(loop, LEFT - 8, row.y + ROW / 2);
  }

  // Draw what a loop did, and return how long it was busy in the window, spans within spans not counted.
  #drawTrack(context, panel, row, keep, shown) {
    const [from, to] = this.view, perPixel = (to - from) / this.#plotWidth();
    const [low, high] = panel.within(row.track, from, to), spans = panel.of[row.track];
    const lanes = new Map();
    let busy = 0;
    context.save();
    context.beginPath();
    context.rect(LEFT, row.y, this.#plotWidth(), row.height);
    context.clip();
    const wide = [];
    for (let place = low; place < high; place += 1) {
      const span = spans[place];
      if (panel.end(span) < from || !keep(span)) continue;
      shown.bars += 1;
      shown.spans += panel.count[span];
      if (panel.depth[span] === 0) busy += panel.busyWithin(span, from, to);
      if (panel.count[span] === 1 && panel.length[span] >= ALONE * perPixel) wide.push(span);
      else this.#gather(lanes, panel, span, perPixel);
    }
    for (const [depth, byName] of lanes) this.#drawColumns(context, panel, this.#lane(row, depth), byName);
    for (const span of wide) this.#drawSpan(context, panel, span, this.#lane(row, panel.depth[span]));
    context.restore();
    return busy;
  }

  // Add a bar's busy time to the pixels it lies on, each as a share of the pixel's time.
  #gather(lanes, panel, span, perPixel) {
    const depth = panel.depth[span], name = panel.name[span], width = Math.ceil(this.#plotWidth());
    if (!lanes.has(depth)) lanes.set(depth, new Map());
    const byName = lanes.get(depth);
    if (!byName.has(name)) byName.set(name, new Float32Array(width + 1));
    const columns = byName.get(name), start = (panel.start[span] - this.view[0]) / perPixel;
    const end = start + Math.max(panel.length[span] / perPixel, 1e-9), density = panel.busy[span] / perPixel / (end - start);
    const first = Math.max(0, Math.floor(start)), last = Math.min(width, Math.floor(end));
    for (let column = first; column <= last; column += 1) {
      columns[column] += density * Math.max(0, Math.min(end, column + 1) - Math.max(start, column)) || Number.MIN_VALUE;
    }
  }

  #drawColumns(context, panel, [y, height], byName) {
    const totals = new Float32Array(Math.ceil(this.#plotWidth()) + 1), base = new Float32Array(totals.length);
    for (const columns of byName.values()) for (let at = 0; at < columns.length; at += 1) totals[at] += columns[at];
    for (const [name, columns] of byName) {
      context.fillStyle = this.#color(panel.data.names[name]);
      let [since, tall, under] = [0, 0, 0]; // columns of one height are one rectangle
      for (let at = 0; at <= columns.length; at += 1) {
        const full = Math.min(1, Math.max(totals[at], LEAST / height)) * height; // what is there can be seen
        const next = columns[at] ? Math.round((columns[at] / totals[at]) * full * 8) / 8 : 0;
        if (at < columns.length && next === tall && base[at] === under) continue;
        if (tall) {
          context.fillRect(LEFT + since, y + height - under - tall, at - since, tall);
          base.fill(under + tall, since, at);
        }
        [since, tall, under] = [at, next, base[at]];
      }
    }
  }

  #drawSpan(context, panel, span, [y, height]) {
    const name = panel.data.names[panel.name[span]], color = this.#color(name);
    const x = Math.max(this.x(panel.start[span]), LEFT - 2), end = Math.min(this.x(panel.end(span)), this.width);
    const width = end - x > 5 ? end - x - 0.6 : end - x;
    context.fillStyle = color;
    context.globalAlpha = name === "wait" ? 0.35 : 1;
    context.fillRect(x, y, width, height);
    context.globalAlpha = 1;
    if (width < 26 || height < ROW) return;
    const text = widthOf(context, name) + 6 < width ? name : "";
    context.fillStyle = inkOn(color);
    context.textAlign = "left";
    context.fillText(text, Math.max(x, LEFT) + 4, y + height / 2 + 0.5);
  }

  // ---- chunks ----

  #ends(index, arrow) {
    const panel = this.panel(index), { from, to, at_us, to_us } = panel.data.arrows;
    const middle = (span, fallback) => {
      const track = span >= 0 ? panel.track[span] : fallback, row = this.rows[index].tracks[track];
      if (!row) return null;
      const [y, height] = this.#lane(row, span >= 0 ? panel.depth[span] : 0);
      return y + height / 2;
    };
    const [start, end] = [middle(from[arrow], this.#other(panel, arrow, 0)), middle(to[arrow], this.#other(panel, arrow, 1))];
    return start === null || end === null ? null : [this.x(at_us[arrow]), start, this.x(to_us[arrow]), end];
  }

  // The track of an end whose span is not in the window: that of the edge's other chunks, else the stage's usual one.
  #other(panel, arrow, side) {
    const { edge } = panel.data.arrows, stage = edge[arrow].split("->")[side];
    const tracks = panel.data.tracks, loop = side === 0 ? "send" : "receive";
    const usual = tracks.indexOf(`${stage}/${loop}`);
    return usual >= 0 ? usual : tracks.findIndex((text) => text.startsWith(`${stage}/`));
  }

  #drawArrows(context, index) {
    const panel = this.panel(index), { from, to, at_us, to_us } = panel.data.arrows, keep = this.#filter(panel);
    const [low, high] = this.view, drawn = new Set(), curves = [];
    for (let arrow = 0; arrow < from.length; arrow += 1) {
      if ((at_us[arrow] < low || at_us[arrow] > high) && (to_us[arrow] < low || to_us[arrow] > high)) continue;
      if ((from[arrow] >= 0 && !keep(from[arrow])) || (to[arrow] >= 0 && !keep(to[arrow]))) continue;
      const ends = this.#ends(index, arrow);
      const key = ends && `${Math.round(ends[0])} ${ends[1]} ${Math.round(ends[2])} ${ends[3]}`;
      if (!ends || drawn.has(key)) continue; // several on the same pixels
      drawn.add(key);
      curves.push(ends);
    }
    context.save();
    context.beginPath();
    context.rect(LEFT, AXIS, this.#plotWidth(), this.height);
    context.clip();
    context.strokeStyle = this.colors.ink;
    context.globalAlpha = Math.max(0.05, Math.min(0.7, 1.8 / Math.sqrt(curves.length))); // many waiting side by side
    context.lineWidth = 1;
    context.beginPath();
    for (const ends of curves) curve(context, ends);
    context.stroke();
    context.globalAlpha = 0.5;
    if (curves.length <= 200) for (const ends of curves) head(context, ends, this.colors.ink);
    context.restore();
  }

  // ---- what lies over it: hovered and pinned spans, their chunks, a selection ----

  #paintOver() {
    if (!this.rows) return;
    const context = this.#prepared(this.over);
    for (const found of [this.pinned, this.hovered]) if (found) this.#mark(context, found);
    if (this.selection) {
      const [one, other] = this.selection;
      context.fillStyle = this.colors.accent;
      context.globalAlpha = 0.18;
      context.fillRect(Math.min(one, other), 0, Math.abs(other - one), this.height);
      context.globalAlpha = 1;
    } else if (this.pointer && this.pointer.x > LEFT) {
      context.fillStyle = this.colors.soft;
      context.globalAlpha = 0.5;
      context.fillRect(this.pointer.x, AXIS - 4, 1, this.height);
    }
  }

  #mark(context, { index, panel, span }) {
    if (panel !== this.panel(index)) return;
    context.globalAlpha = 1;
    context.save();
    context.beginPath();
    context.rect(LEFT - 2, AXIS, this.#plotWidth() + 4, this.height);
    context.clip();
    context.strokeStyle = this.colors.accent;
    context.lineWidth = 2;
    const arrows = this.off.arrows ? [] : this.#chunksOf(panel, span);
    const { from, to } = panel.data.arrows;
    for (const one of new Set([span, ...arrows.flatMap((arrow) => [from[arrow], to[arrow]])])) {
      const box = one >= 0 && this.where(index, one);
      if (box) context.strokeRect(box.x - 1, box.y - 1, Math.max(box.width, 1) + 2, box.height + 2);
    }
    for (const arrow of arrows) {
      const ends = this.#ends(index, arrow);
      if (!ends) continue;
      context.beginPath();
      curve(context, ends);
      context.stroke();
      head(context, ends, this.colors.accent);
    }
    context.restore();
  }

  // The chunks to mark with a bar: few, or it would be all of them.
  #chunksOf(panel, span) {
    const arrows = panel.arrowsOf.get(span) ?? [];
    return arrows.length <= 30 ? arrows : [];
  }

  #find(x, y) {
    if (!this.rows || x < LEFT || x > this.width - RIGHT) return null;
    for (const [index, { tracks }] of this.rows.entries()) {
      const row = tracks.find((one) => one && y >= one.y - 1 && y <= one.y + one.height + 1);
      if (row) return this.#findIn(index, row, x, y);
    }
    return null;
  }

  // The bar under a point: of those on the pixel the one at this depth; else the busiest; others there are counted.
  #findIn(index, row, x, y) {
    const panel = this.panel(index), keep = this.#filter(panel), at = this.#at(x), pad = this.#at(x + 1.5) - at;
    const [low, high] = panel.within(row.track, at - pad, at + pad);
    const here = panel.of[row.track].slice(low, high).filter((span) => panel.end(span) >= at - pad && keep(span));
    if (!here.length) return null;
    const depth = y < row.y + ROW ? 0 : 1 + Math.floor((y - row.y - ROW) / INNER);
    const level = here.filter((span) => panel.depth[span] === depth);
    const over = (level.length ? level : here).filter((span) => panel.start[span] <= at && panel.end(span) >= at);
    const nearest = over.length ? over : level.length ? level : here;
    const span = nearest.reduce((best, one) => (panel.busy[one] > panel.busy[best] ? one : best));
    return { index, panel, span, others: here.length - 1 };
  }

  #words({ panel, span, others }) {
    const { data } = panel, count = panel.count[span], name = data.names[panel.name[span]];
    const lines = [data.tracks[panel.track[span]]];
    const request = panel.request[span];
    if (request > 0) lines[0] += ` · ${data.requests[request]}`;
    else if (request < 0) lines[0] += " · several requests";
    if (panel.chunk[span] >= 0) lines.push(`chunk ${panel.chunk[span]}${panel.bytes[span] >= 0 ? `, ${size(panel.bytes[span])}` : ""}`);
    else if (panel.bytes[span] >= 0) lines.push(size(panel.bytes[span]));
    lines.push(`start ${time(panel.start[span], 9)}`);
    lines.push(count > 1 ? `busy ${time(panel.busy[span])} of ${time(panel.length[span])}` : `length ${time(panel.length[span])}`);
    lines.push(...this.#chunkWords(panel, span));
    if (others) lines.push(`and ${several(others, "bar")} more on this pixel: zoom in`);
    return [count > 1 ? `${number(count)} × ${name}` : name, lines.join("\n")];
  }

  #chunkWords(panel, span) {
    const arrows = panel.arrowsOf.get(span) ?? [], { edge, at_us, to_us, count } = panel.data.arrows;
    if (!arrows.length) return [];
    const took = arrows.map((arrow) => to_us[arrow] - at_us[arrow]), total = arrows.reduce((sum, a) => sum + (count?.[a] ?? 1), 0);
    if (total === 1) return [`${edge[arrows[0]].replace("->", " → ")}: sent to taken ${time(took[0])}`];
    return [`${several(total, "chunk")}, sent to taken ${time(Math.min(...took))} to ${time(Math.max(...took))}`];
  }

  #tell() {
    const found = this.pinned ?? this.hovered;
    this.tip.hidden = !found;
    if (!found) return;
    const [title, text] = this.#words(found), { x, y } = this.pinned ? this.pinnedAt : this.pointer;
    this.tip.replaceChildren(make("b", { textContent: title }), text);
    this.tip.classList.toggle("pinned", Boolean(this.pinned));
    const { offsetWidth, offsetHeight } = this.tip;
    this.tip.style.left = `${Math.max(0, Math.min(x + 14, this.width - offsetWidth - 4))}px`;
    this.tip.style.top = `${y + 16 + offsetHeight > this.height ? Math.max(0, y - offsetHeight - 10) : y + 16}px`;
  }

  // ---- pointer and keys ----

  #listen() {
    const on = (target, kind, act, more = {}) => target.addEventListener(kind, act, { signal: this.stop.signal, ...more });
    on(this.area, "pointermove", (event) => this.#moved(event));
    on(this.area, "pointerdown", (event) => this.#pressed(event));
    on(this.area, "pointerup", (event) => this.#released(event));
    on(this.area, "pointercancel", () => this.#drop());
    on(this.area, "pointerleave", () => this.#left());
    on(this.area, "dblclick", () => this.all());
    on(this.area, "wheel", (event) => this.#wheeled(event), { passive: false });
    on(this.area, "keydown", (event) => this.#key(event));
    on(document, "scroll", () => (this.scrolled = performance.now()), { capture: true, passive: true });
    on(this.scheme, "change", () => this.#theme());
    this.resized = new ResizeObserver(() => this.area.clientWidth !== this.width && this.#draw());
    this.resized.observe(this.area);
  }

  #place(event) {
    const { left, top } = this.area.getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top };
  }

  #moved(event) {
    const before = this.pointer;
    this.pointer = this.#place(event);
    if (this.dragging) {
      this.dragging.far ||= Math.abs(this.pointer.x - this.dragging.from.x) > 3;
      if (this.dragging.selects) this.selection = [this.dragging.from.x, this.pointer.x];
      else if (this.dragging.far && before) this.#pan(before.x - this.pointer.x);
    }
    this.hovered = this.dragging?.far ? null : this.#find(this.pointer.x, this.pointer.y);
    this.area.style.cursor = this.dragging?.far ? "grabbing" : this.hovered ? "pointer" : "default";
    this.overPending ??= requestAnimationFrame(() => {
      this.overPending = null;
      this.#paintOver();
      this.#tell();
    });
  }

  #pressed(event) {
    if (event.button !== 0) return;
    const from = this.#place(event);
    this.pointer = from;
    this.dragging = { from, far: false, selects: event.shiftKey || from.y < AXIS };
    if (this.area.setPointerCapture && event.isTrusted) this.area.setPointerCapture(event.pointerId);
  }

  #released(event) {
    const { dragging, selection } = this;
    this.#drop();
    if (!dragging) return;
    if (dragging.selects && selection && Math.abs(selection[1] - selection[0]) > 3) {
      this.show(this.#at(Math.max(LEFT, Math.min(...selection))), this.#at(Math.max(...selection)));
    } else if (!dragging.far) {
      const { x, y } = this.#place(event);
      [this.pinned, this.pinnedAt] = [this.#find(x, y), { x, y }];
      this.#paintOver();
      this.#tell();
    }
  }

  #drop() {
    [this.dragging, this.selection] = [null, null];
    this.#paintOver();
  }

  #left() {
    [this.pointer, this.hovered] = [null, null];
    this.#paintOver();
    this.#tell();
  }

  // A wheel that has been scrolling the page goes on scrolling it when it comes over the timeline.
  #wheeled(event) {
    const scrolling = performance.now() - (this.scrolled ?? -1e9) < 250 && !event.ctrlKey;
    const outOfAll = event.deltaY > 0 && this.view[0] <= this.whole[0] && this.view[1] >= this.whole[1];
    if (scrolling || (outOfAll && !event.ctrlKey && !event.shiftKey && !event.deltaX)) return;
    event.preventDefault();
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) this.#pan(sideways);
    else this.#zoom(Math.exp(Math.min(300, Math.max(-300, event.deltaY)) * 0.002), this.#at(Math.max(LEFT, this.#place(event).x)));
  }

  #key(event) {
    const step = this.#plotWidth() * 0.15;
    const acts = {
      "+": () => this.#zoom(0.6), "=": () => this.#zoom(0.6), "-": () => this.#zoom(1 / 0.6), 0: () => this.all(),
      ArrowLeft: () => this.#pan(-step), ArrowRight: () => this.#pan(step),
      Escape: () => ((this.pinned = null), this.#paintOver(), this.#tell()),
    };
    if (!acts[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    acts[event.key]();
  }

  // ---- in words ----

  #say() {
    const [from, to] = this.view, bars = this.shown?.reduce((sum, one) => sum + one.bars, 0) ?? 0;
    const spans = this.shown?.reduce((sum, one) => sum + one.spans, 0) ?? 0;
    const drawn = spans > bars ? `${several(spans, "span")} in ${several(bars, "bar")}` : several(spans, "span");
    const notes = [`${time(from, 7)} to ${time(to, 7)} (${time(to - from)})`, drawn];
    if (spans > bars && !this.load) notes.push("bars of several spans show the share of time that was busy");
    if (this.loading) notes.push("loading finer data …");
    if (this.trouble) notes.push(this.trouble);
    this.said.textContent = notes.join(" · ");
    const trials = this.coarse.map(({ data }) => `${data.label} (${headline(data)})`).join(" and ");
    this.canvas.ariaLabel = `Timeline of ${trials}, shown from ${time(from)} to ${time(to)}: ${drawn}`;
  }

  #toggleTable() {
    this.table.hidden = !this.table.hidden;
    this.tableButton.ariaExpanded = String(!this.table.hidden);
    if (!this.table.hidden) this.#fillTable();
  }

  // Busy time by loop and name in the window shown, panels side by side.
  #fillTable() {
    const sums = this.coarse.map((_, index) => this.#sums(index));
    const keys = [...new Set(sums.flatMap((by) => [...by.keys()]))];
    const labels = this.coarse.map(({ data }) => data.label), two = labels.length === 2;
    const titles = ["loop", "span", ...labels.flatMap(() => ["spans", "ms"]), ...(two ? ["change, ms"] : [])];
    const above = labels.map((textContent) => make("th", { scope: "colgroup", colSpan: 2, textContent }));
    const rows = keys.map((key) => {
      const of = sums.map((by) => by.get(key) ?? { count: 0, us: 0 });
      const cells = of.flatMap(({ count, us }) => [number(count), (us / 1000).toFixed(3)]);
      if (two) cells.push(signed((of[1].us - of[0].us) / 1000));
      const heads = key.split("\t").map((text) => make("th", { scope: "row", textContent: text }));
      return make("tr", {}, ...heads, ...cells.map((text) => make("td", { textContent: text })));
    });
    const about = sums.some((by) => [...by.values()].some((sum) => sum.cut));
    this.table.replaceChildren(
      make("table", {},
        make("thead", {}, make("tr", {}, make("td", { colSpan: 2 }), ...above),
          make("tr", {}, ...titles.map((text) => make("th", { scope: "col", textContent: text })))),
        make("tbody", {}, ...rows)),
      ...(about ? [make("p", { className: "said", textContent: "About: bars of several spans reach over the window's edge." })] : []));
  }

  #sums(index) {
    const panel = this.panel(index), keep = this.#filter(panel), by = new Map(), [from, to] = this.view;
    panel.data.tracks.forEach((text, track) => {
      const [low, high] = panel.within(track, from, to);
      const here = panel.of[track].slice(low, high).filter((span) => panel.end(span) >= from && keep(span));
      for (const span of here.sort((one, other) => panel.name[one] - panel.name[other])) {
        const key = `${text}\t${panel.data.names[panel.name[span]]}`, sum = by.get(key) ?? { count: 0, us: 0, cut: false };
        sum.count += panel.count[span];
        sum.us += panel.busyWithin(span, from, to);
        sum.cut ||= panel.count[span] > 1 && (panel.start[span] < from || panel.end(span) > to);
        by.set(key, sum);
      }
    });
    return by;
  }

  destroy() {
    this.stop.abort();
    this.resized.disconnect();
    clearTimeout(this.timer);
    cancelAnimationFrame(this.pending);
    cancelAnimationFrame(this.overPending);
    this.host.remove();
    delete this.element.dataset.ready;
    delete this.element.dataset.drawMs;
  }
}

// ---- small drawings ----

const widths = new Map();

function widthOf(context, text) {
  const key = `${context.font} ${text}`;
  if (!widths.has(key)) widths.set(key, context.measureText(text).width);
  return widths.get(key);
}

function axisStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((times) => times * power).find((step) => step >= least * (1 - 1e-9));
}

function curve(context, [x, y, toX, toY]) {
  const middle = (y + toY) / 2;
  context.moveTo(x, y);
  context.bezierCurveTo(x, middle, toX, middle, toX, toY);
}

function head(context, [, y, x, toY], color) {
  const back = toY > y ? -6 : 6;
  context.fillStyle = color;
  context.beginPath();
  context.moveTo(x, toY);
  context.lineTo(x - 3, toY + back);
  context.lineTo(x + 3, toY + back);
  context.fill();
}

function headline(data) {
  const notes = [time(data.length_us), several(data.total, "span")];
  if (data.lost) notes.push(`${number(data.lost)} more were lost: a ring was full, so the earliest are not here`);
  if (data.unmatched) notes.push(`${several(data.unmatched, "chunk")} with one end only`);
  return data.total || data.length_us ? notes.join(" · ") : "no spans were recorded";
}

function signed(value) {
  return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;
}

// Draw panels into an element. `load(panel, fromUs, toUs, request)` may bring finer data for a window, or null.
export function mount(element, { panels, load = null, dark }) {
  const timeline = new Timeline(element, { panels, load, dark });
  return {
    destroy: () => timeline.destroy(),
    set: (panels) => timeline.set(panels),
    show: (fromUs, toUs) => timeline.show(fromUs, toUs),
    view: () => [...timeline.view],
    where: (panel, span) => timeline.where(panel, span),
  };
}

// For anywidget: panels come as a trait, finer data by messages.
function render({ model, el }) {
  const asked = new Map(); // by id of the message
  let last = 0;
  const answered = (message) => {
    if (message.kind !== "loaded" || !asked.has(message.id)) return;
    const { resolve, reject } = asked.get(message.id);
    asked.delete(message.id);
    if (message.error) reject(new Error(message.error));
    else resolve(message.data);
  };
  const load = (panel, from, to, request) => new Promise((resolve, reject) => {
    last += 1;
    asked.set(last, { resolve, reject });
    model.send({ kind: "load", id: last, panel, from, to, request });
  });
  const theme = document.body.dataset.jpThemeLight; // JupyterLab's own; elsewhere the browser says
  const dark = theme === undefined ? undefined : theme === "false";
  const timeline = mount(el, { panels: model.get("panels"), load, dark });
  const changed = () => timeline.set(model.get("panels"));
  model.on("msg:custom", answered);
  model.on("change:panels", changed);
  return () => {
    model.off("msg:custom", answered);
    model.off("change:panels", changed);
    timeline.destroy();
  };
}

export default { render };

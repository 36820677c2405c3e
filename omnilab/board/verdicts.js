// Two views of what a run shows: its verdicts, in its report's words, and where time went, a bar a variant.

import {ask, el, inUnit, marked, table} from "./page.js";
import {colorOf} from "./timeline.js";

const LONG = 24; // letters of a cell that may break into lines
const GOOD = /^(faster)/, BAD = /^(slower|failed the gate)/, OPEN = /^(inconclusive|no verdict|withheld|not measured)/;

export function verdictsView(main, run) {
  const verdict = run.header.findIndex((title) => title.startsWith("verdict"));
  const order = run.header.map((_, column) => column).sort((a, b) => rank(a, verdict) - rank(b, verdict));
  const rows = run.rows.map((row) => order.map((column) => {
    const kind = column === verdict ? kindOf(row[column]) : row[column].length > LONG && column ? "long" : "";
    return [row[column], kind];
  }));
  main.append(el("h1", {}, run.title));
  if (run.unfinished) {
    main.append(el("p", {class: "wrong"}, "The run was not finished: this is what was measured before it stopped."));
  }
  main.append(
    ...run.heading.map((line) => el("p", {class: "fact"}, line)),
    table(order.map((column) => run.header[column]), rows, "Verdicts"));
  const rest = el("section", {"aria-busy": "true"}, el("p", {class: "note"}, "The rest of the report is being made of "
    + "the rows; of a long run that takes a while."));
  main.append(rest);
  fill(rest, run.name);
}

// The lines below the table need the spans: they come when they are there, and do not hold up the table.
async function fill(rest, run) {
  try {
    const sections = Object.entries(await ask("sections", {run}));
    rest.replaceChildren(...sections.flatMap(([title, lines]) =>
      [el("h2", {}, title), el("ul", {}, ...lines.map((line) => el("li", {}, ...marked(line))))]));
  } catch (error) {
    rest.replaceChildren(el("p", {class: "wrong", role: "alert"}, error.message));
  }
  rest.setAttribute("aria-busy", "false");
}

function rank(column, verdict) {
  return column === 0 ? -2 : column === verdict ? -1 : column;
}

function kindOf(words) {
  return GOOD.test(words) ? "good" : BAD.test(words) ? "bad" : OPEN.test(words) ? "open" : "";
}

export function barsView(main, run) {
  const {names, stages} = run.bars;
  if (!names.length) {
    main.append(el("p", {}, "No trial of this run recorded spans."));
    return;
  }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const colours = names.map((name) => name === "other" ? "var(--line)" : colorOf(name, dark)); // those of the timeline
  const most = Math.max(...stages.flatMap((stage) => stage.rows.map((row) => sum(row.ms))));
  const unit = most >= 1000 ? "s" : "ms";
  main.append(
    el("h1", {}, "Time of a trial by stage and span"),
    el("p", {class: "fact"}, "Mean over the trials that succeeded, all bars on one scale. Spans of several threads "
      + "overlap: bars do not add up to wall time. What failed the gate has none."),
    el("div", {class: "keys"}, ...names.map((name, at) => {
      const key = el("i", {});
      key.style.background = colours[at];
      return el("span", {}, key, name);
    })));
  for (const {stage, rows} of stages) {
    const grid = el("div", {class: "bars", "data-stage": stage});
    for (const {variant, ms} of rows) {
      const bar = el("div", {class: "bar", role: "img", "aria-label": `${stage}, ${variant}: ${inUnit(sum(ms), unit)}`});
      bar.append(...ms.map((value, at) => part(names[at], value, most, colours[at], unit)).filter(Boolean));
      grid.append(el("span", {}, variant), bar, el("span", {class: "value"}, inUnit(sum(ms), unit)));
    }
    main.append(el("h2", {}, stage), grid);
  }
  main.append(el("details", {}, el("summary", {}, "As a table"), numbers(run.bars, unit)));
}

function part(name, ms, most, colour, unit) {
  if (!ms) return null;
  const made = el("i", {title: `${name}: ${inUnit(ms, unit)}`, "data-name": name});
  made.style.width = `${(100 * ms) / most}%`;
  made.style.background = colour;
  return made;
}

function numbers({names, stages}, unit) {
  const rows = stages.flatMap(({stage, rows: inside}) => inside.map(({variant, ms}) =>
    [`${stage}, ${variant}`, ...ms.map((value) => [inUnit(value, unit), "number"])]));
  return table(["stage, variant", ...names.map((name) => [name, "number"])], rows, "Time by stage and span");
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

// The tab "omnilab" in TensorBoard: an ES module that TensorBoard imports into a frame of its own and renders.
// Everything is asked of the routes beside it; nothing comes from outside. Texts of runs become text, never markup.

import {filesView, soundsView} from "./listings.js";
import {ask, el, select} from "./page.js";
import {timelineView} from "./spans.js";
import {barsView, verdictsView} from "./verdicts.js";

const VIEWS = {
  verdicts: ["Verdicts", verdictsView],
  stages: ["Time by stage", barsView],
  timeline: ["Timeline", timelineView],
  sounds: ["Sounds", soundsView],
  traces: ["Traces", filesView],
};

let leave = () => {}; // takes down the view that is shown

export async function render() {
  document.documentElement.lang = "en";
  document.title = "omnilab";
  document.head.append(
    el("link", {rel: "icon", href: "data:,"}), // none, and none is asked for
    el("link", {rel: "stylesheet", href: "style.css"}));
  const top = el("header", {class: "top"});
  const main = el("main", {id: "view"});
  document.body.append(top, main);
  addEventListener("hashchange", () => show(top, main));
  await show(top, main);
}

function place() {
  const asked = new URLSearchParams(location.hash.slice(1));
  return {run: asked.get("run"), view: asked.get("view") in VIEWS ? asked.get("view") : "verdicts"};
}

function go(run, view) {
  location.hash = new URLSearchParams({run, view}).toString();
}

async function show(top, main) {
  document.body.dataset.ready = "";
  leave();
  leave = () => {};
  try {
    const {logdir, runs} = await ask("runs", {});
    const {run: asked, view} = place();
    const chosen = runs.find(({name}) => name === asked) ?? runs.find(({damaged}) => !damaged) ?? runs[0];
    const run = chosen?.name;
    top.replaceChildren(...header(runs, run, view, () => show(top, main)));
    if (!runs.length) throw new Error(`no run below ${logdir || "the logdir"}: start tensorboard with --logdir RUN`);
    if (chosen.damaged) throw new Error(chosen.damaged);
    const data = await ask("run", {run});
    main.replaceChildren(el("p", {class: "note"}, data.about));
    main.setAttribute("aria-label", VIEWS[view][0]);
    leave = (await VIEWS[view][1](main, data)) ?? leave;
  } catch (error) {
    main.replaceChildren(el("p", {class: "wrong", role: "alert"}, error.message));
  }
  document.body.dataset.ready = "1";
}

function header(runs, run, view, again) {
  const tabs = Object.entries(VIEWS).map(([name, [title]]) =>
    el("button", {role: "tab", "aria-selected": String(name === view), onclick: () => go(run, name)}, title));
  const choices = runs.map(({name, damaged}) => [name, damaged ? `${name} (damaged)` : name]);
  return [
    el("div", {class: "pick"},
      el("label", {}, "run ", select(choices, run, (name) => go(name, view), "run")),
      el("button", {onclick: again, title: "read the run again"}, "Reload")),
    el("div", {class: "tabs", role: "tablist"}, ...tabs),
  ];
}

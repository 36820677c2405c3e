// The timeline of one trial, or of two on one time axis. The drawing is omnilab/profile/timeline.js, as in notebooks
// and reports; finer spans come from the route `timeline` as one zooms.

import {ask, el, select} from "./page.js";
import {mount} from "./timeline.js";

const NONE = "";

export async function timelineView(main, run) {
  const shown = run.first.map(({variant, block}) => ({variant, block: String(block)}));
  if (!shown.length) {
    main.append(el("p", {}, "No trial of this run was measured yet."));
    return undefined;
  }
  const second = shown[1] ?? {variant: NONE, block: ""};
  const chosen = [shown[0], second];
  const asked = el("div", {class: "asked"}), said = el("p", {class: "wrong", role: "alert", hidden: ""});
  const home = el("div", {id: "timeline"});
  main.append(el("h1", {}, "Timeline"), asked, said, home);
  let drawn = null, latest = 0;

  async function draw() {
    const mine = ++latest;
    asked.replaceChildren(...chosen.flatMap((one, at) => chooser(run, one, at, draw)));
    said.hidden = true;
    home.setAttribute("aria-busy", "true");
    try {
      const panels = chosen.filter((one) => one.variant !== NONE);
      const data = await Promise.all(panels.map((one) => ask("timeline", trial(run, one))));
      if (mine !== latest) return; // another choice was made meanwhile
      if (drawn) drawn.set(data);
      else drawn = mount(home, {panels: data, load: finer});
    } catch (error) {
      if (mine !== latest) return;
      drawn?.destroy();
      drawn = null;
      home.replaceChildren();
      tell(error);
    }
    home.setAttribute("aria-busy", "false");
  }

  async function finer(panel, from, to, request) {
    const one = chosen.filter((each) => each.variant !== NONE)[panel];
    try {
      return await ask("timeline", {...trial(run, one), from, to, ...(request ? {request} : {})});
    } catch (error) {
      tell(error);
      return null;
    }
  }

  function tell(error) {
    said.textContent = error.message;
    said.hidden = false;
  }

  await draw();
  return () => {
    latest++;
    drawn?.destroy();
  };
}

function trial(run, {variant, block}) {
  return {run: run.name, variant, block};
}

// Return the selects of one panel: variant and block. The second panel may be left empty.
function chooser(run, one, at, changed) {
  const names = run.variants.map(({name}) => name);
  const choices = at ? [[NONE, "nothing"], ...names] : names;
  const blocks = run.variants.find(({name}) => name === one.variant)?.blocks ?? [];
  const variants = select(choices, one.variant, (name) => {
    const there = run.variants.find((variant) => variant.name === name)?.blocks ?? [];
    one.variant = name;
    if (!there.some(({block}) => String(block) === one.block)) one.block = String(there[0]?.block ?? "");
    changed();
  }, at ? "variant below" : "variant");
  const of = blocks.map(({block, error}) => [String(block), error ? `${block} (failed)` : String(block)]);
  return [
    el("label", {}, at ? "below it" : "variant", variants),
    ...(blocks.length ? [el("label", {}, "block", select(of, one.block, (block) => {
      one.block = block;
      changed();
    }, at ? "block below" : "block"))] : []),
  ];
}

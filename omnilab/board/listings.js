// Two views of files: sounds to play, and traces to download or to open in Perfetto.

import {address, el, select, size, table} from "./page.js";

const PERFETTO = "https://ui.perfetto.dev"; // asked for on a click alone
const PATIENCE_MS = 60_000, EACH_MS = 100;

export function soundsView(main, run) {
  main.append(el("h1", {}, "Sounds"));
  if (run.unheard) main.append(el("p", {class: "wrong", role: "alert"}, run.unheard));
  else if (!run.sounds.length) main.append(el("p", {}, "This run kept no sounds, or was packed without them."));
  else {
    main.append(
      el("p", {class: "fact"}, "The first request of each variant's first trial. Weights of the named sizes are random: their "
        + "speech says nothing; hear whether two variants differ."),
      table(["variant", "request", "seconds", ""], run.sounds.map(sound(run)), "Sounds"));
  }
}

function sound(run) {
  return ({variant, request, seconds}) => [
    variant, String(request), [seconds.toFixed(2), "number"],
    el("audio", {
      controls: "", preload: "none", src: address("audio", {run: run.name, variant, request}),
      "aria-label": `${variant}, request ${request}`,
    }),
  ];
}

export function filesView(main, run) {
  const said = el("p", {class: "note", role: "status"});
  main.append(
    el("h1", {}, "Traces"),
    el("p", {class: "fact"}, "Perfetto is a page of its own at ui.perfetto.dev: a click opens it and gives it the trace "
      + "in the browser, which sends it nowhere. Nothing is asked of it before. chrome://tracing opens the same files."));
  if (run.first.length) main.append(el("h2", {}, "Spans of a trial"), ofTrial(run, said));
  main.append(said, el("h2", {}, "Files below traces/"));
  if (!run.files.length) {
    main.append(el("p", {}, ...["None yet: ", el("code", {}, "python -m omnilab.trace RUN"), " writes a trace a variant."]));
    return;
  }
  const rows = run.files.map((file) => {
    const from = address("file", {run: run.name, file: file.name});
    return [
      file.name, file.kind, [size(file.bytes), "number"],
      el("a", {href: from, download: ""}, "download"),
      file.perfetto ? opener(said, from, file.name) : "",
    ];
  });
  main.append(table(["file", "what it is", ["size", "number"], "", ""], rows, "Files"));
}

function ofTrial(run, said) {
  const one = {variant: run.first[0].variant, block: String(run.first[0].block)};
  const box = el("div", {class: "asked"});
  const draw = () => {
    const blocks = run.variants.find(({name}) => name === one.variant).blocks.map(({block}) => String(block));
    if (!blocks.includes(one.block)) one.block = blocks[0];
    const from = address("trace", {run: run.name, ...one});
    const variants = select(run.variants.map(({name}) => name), one.variant, (name) => {
      one.variant = name;
      draw();
    }, "variant");
    const chosen = select(blocks, one.block, (block) => {
      one.block = block;
      draw();
    }, "block");
    box.replaceChildren(
      el("label", {}, "variant", variants), el("label", {}, "block", chosen),
      el("a", {href: from, download: ""}, "download"), opener(said, from, `${run.name}: ${one.variant}, block ${one.block}`));
  };
  draw();
  return box;
}

function opener(said, from, title) {
  const button = el("button", {}, "open in Perfetto");
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      await openInPerfetto(from, title, (words) => { said.textContent = words; });
    } catch (error) {
      said.textContent = error.message;
    }
    button.disabled = false;
  });
  return button;
}

// Open Perfetto's page, wait until it answers, and hand it the trace. The window is opened first: later would not
// count as of the click, and be blocked.
async function openInPerfetto(from, title, say) {
  const other = open(PERFETTO);
  if (!other) throw new Error("the browser did not open a window: allow this page to, or download the trace");
  say(`${title}: being read ...`);
  const answer = await fetch(from);
  if (!answer.ok) throw new Error((await answer.json()).error);
  const buffer = await answer.arrayBuffer();
  say(`${title}: waiting for ui.perfetto.dev ...`);
  await greeted(other);
  other.postMessage({perfetto: {buffer, title}}, PERFETTO);
  say(`${title}: opened in Perfetto`);
}

function greeted(other) {
  return new Promise((resolve, reject) => {
    const until = Date.now() + PATIENCE_MS;
    const done = (act) => {
      clearInterval(timer);
      removeEventListener("message", heard);
      act();
    };
    const heard = (event) => {
      if (event.source === other && event.origin === PERFETTO && event.data === "PONG") done(resolve);
    };
    const timer = setInterval(() => {
      if (other.closed || Date.now() > until) {
        done(() => reject(new Error("ui.perfetto.dev does not answer: is there a network? Download the trace instead")));
      } else other.postMessage("PING", PERFETTO);
    }, EACH_MS);
    addEventListener("message", heard);
  });
}

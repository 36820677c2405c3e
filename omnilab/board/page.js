// What the views share: elements, requests, numbers in words.

// Make an element; `on...` are listeners, children are elements or texts.
export function el(tag, given, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function select(choices, chosen, onchoice, label) {
  const options = choices.map((choice) => {
    const [value, text] = Array.isArray(choice) ? choice : [choice, choice];
    const option = el("option", {value}, text);
    option.selected = value === chosen;
    return option;
  });
  return el("select", {"aria-label": label, onchange: (event) => onchoice(event.target.value)}, ...options);
}

export function address(route, asked) {
  return `${route}?${new URLSearchParams(asked)}`;
}

// Return what a route answers; throws its reason where it has none.
export async function ask(route, asked) {
  const answer = await fetch(address(route, asked));
  const type = answer.headers.get("Content-Type") ?? "";
  const value = type.startsWith("application/json") ? await answer.json() : {error: `${route}: ${answer.status}`};
  if (!answer.ok) throw new Error(value.error);
  return value;
}

// Return a line of a report as nodes: **bold** and `code` are all that it may hold.
export function marked(line) {
  return line.split(/(\*\*.+?\*\*|`.+?`)/).map((part) =>
    part.startsWith("**") ? el("b", {}, part.slice(2, -2))
      : part.startsWith("`") ? el("code", {}, part.slice(1, -1)) : part);
}

export function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let at = 0;
  for (; bytes >= 1024 && at < units.length - 1; at++) bytes /= 1024;
  return `${at ? bytes.toPrecision(3) : bytes} ${units[at]}`;
}

// Write milliseconds in a unit that all of a view share.
export function inUnit(ms, unit) {
  const value = unit === "s" ? ms / 1000 : ms;
  return `${value >= 100 ? Math.round(value).toLocaleString("en") : value ? Number(value.toPrecision(3)) : 0} ${unit}`;
}

// Return a table in a box that scrolls by itself; cells are texts, nodes or [text, class].
export function table(header, rows, label) {
  const cell = (tag, given, value) => {
    const [inside, kind] = Array.isArray(value) ? value : [value, ""];
    return el(tag, kind ? {...given, class: kind} : given, inside);
  };
  return el("div", {class: "wide", role: "region", tabindex: "0", "aria-label": label},
    el("table", {},
      el("thead", {}, el("tr", {}, ...header.map((one) => cell("th", {scope: "col"}, one)))),
      el("tbody", {}, ...rows.map(([first, ...others]) =>
        el("tr", {}, cell("th", {scope: "row"}, first), ...others.map((one) => cell("td", {}, one)))))));
}

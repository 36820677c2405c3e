"""A text to copy: shown read-only, with a button that puts it on the clipboard."""

from __future__ import annotations

import anywidget
import traitlets

SCRIPT = """
function render({ model, el }) {
  const box = document.createElement("div");
  const button = document.createElement("button");
  const text = document.createElement("pre");
  box.style.cssText = "position:relative;border:1px solid rgba(128,128,128,.35);border-radius:4px";
  text.style.cssText = "margin:0;padding:.5em 6em .5em .7em;white-space:pre-wrap;" +
    "word-break:normal;overflow-wrap:break-word;font-size:.9em;color:inherit;background:transparent";
  text.tabIndex = 0;
  button.style.cssText = "position:absolute;top:.35em;right:.4em;font:inherit;color:inherit;background:transparent;" +
    "border:1px solid rgba(128,128,128,.6);border-radius:4px;padding:1px 8px;cursor:pointer";
  const show = () => {
    text.textContent = model.get("text");
    button.textContent = "Copy";
    text.setAttribute("aria-label", model.get("title"));
    button.title = model.get("title");
  };
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(model.get("text"));
      button.textContent = "Copied";
    } catch {  // a page without the right to write it: select, so that Ctrl-C does
      getSelection().selectAllChildren(text);
      button.textContent = "Selected: press Ctrl-C";
    }
  };
  button.addEventListener("click", copy);
  model.on("change:text", show);
  box.append(text, button);
  el.append(box);
  show();
  return () => model.off("change:text", show);
}
export default { render };
"""


class Copying(anywidget.AnyWidget):
    """Shows `text`; `title` says what it is."""

    _esm = SCRIPT
    text = traitlets.Unicode().tag(sync=True)
    title = traitlets.Unicode().tag(sync=True)

// Exchanges as a capture file: what the filter finds, or what is marked.

import { h } from "./dom.js";

export class Saving {
  /** `current`: the filter that is applied, and whether mcpmux's own exchanges are shown. */
  constructor(button, panel, current) {
    Object.assign(this, { button, panel, current });
    button.addEventListener("click", () => this.toggle());
  }

  toggle() {
    this.panel.hidden = !this.panel.hidden;
    this.button.setAttribute("aria-expanded", String(!this.panel.hidden));
    if (!this.panel.hidden) this.draw();
  }

  /** The filter has changed. */
  draw() {
    if (this.panel.hidden) return;
    const { filter, own } = this.current();
    const file = `mcpmux-${new Date().toISOString().replace(/[-:]|\..*/g, "")}Z.jsonl`;
    const link = (words, wanted) => h("a", { class: "button", href: `/api/capture?${new URLSearchParams({ filter: wanted, own })}`, download: file }, words);
    this.panel.replaceChildren(
      link(filter ? "Save what the filter finds" : "Save all of them", filter), link("Save what is marked", "marked"),
      h("span", {}, "The file is a capture. To have it answered from, or to read it:"),
      h("code", { translate: "no" }, `mcpmux traffic mock ${file} --listen 127.0.0.1:9000`),
      h("code", { translate: "no" }, `mcpmux traffic stats ${file}`));
  }
}

// Exchanges as a capture file, or as a server that answers from them: what the filter finds, or what is marked.

import { get, post } from "./api.js";
import { h } from "./dom.js";

export class Saving {
  /** `current`: the filter that is applied, and whether mcpmux's own exchanges are shown. */
  constructor(button, panel, current) {
    Object.assign(this, { button, panel, current });
    this.links = h("div", { class: "choices" });
    this.mocks = h("ul", { class: "mocks", "aria-label": "Mocks that run" });
    this.said = h("p", { class: "problem", role: "status" });
    panel.replaceChildren(this.links, this.mocks, this.said);
    button.addEventListener("click", () => this.toggle());
  }

  toggle() {
    this.panel.hidden = !this.panel.hidden;
    this.button.setAttribute("aria-expanded", String(!this.panel.hidden));
    if (this.panel.hidden) return;
    this.draw();
    this.attempt(() => this.showMocks());
  }

  /** The filter has changed. */
  draw() {
    if (this.panel.hidden) return;
    const { filter, own } = this.current();
    const file = `mcpmux-${new Date().toISOString().replace(/[-:]|\..*/g, "")}Z.jsonl`;
    const link = (words, wanted) => h("a", { class: "button", href: `/api/capture?${new URLSearchParams({ filter: wanted, own })}`, download: file }, words);
    const mock = (words, wanted) => h("button", { class: "button", onclick: () => this.attempt(() => this.start(wanted)) }, words);
    this.links.replaceChildren(
      link(filter ? "Save what the filter finds" : "Save all of them", filter), link("Save what is marked", "marked"),
      ...(own ? [] : [mock(filter ? "Mock what the filter finds" : "Mock all of them", filter), mock("Mock what is marked", "marked")]),
      h("span", {}, "The file is a capture. To have it answered from, or to read it:"),
      h("code", { translate: "no" }, `mcpmux traffic mock ${file} --listen 127.0.0.1:9000`),
      h("code", { translate: "no" }, `mcpmux traffic stats ${file}`));
  }

  async start(filter) {
    await post("/api/mocks", { filter });
    await this.showMocks();
  }

  async stop(number) {
    await post(`/api/mocks/${number}/stop`);
    await this.showMocks();
  }

  async showMocks() {
    const { mocks } = await get("/api/mocks");
    this.mocks.replaceChildren(...mocks.map((mock) => h("li", {},
      h("code", { translate: "no" }, mock.url),
      h("span", {}, `answers ${mock.requests} request${mock.requests === 1 ? "" : "s"} of ${mock.filter || "all exchanges"}`
        + (mock.not_served ? `, not ${mock.not_served}` : "")),
      h("button", { class: "button", onclick: () => this.attempt(() => this.stop(mock.number)) }, `Stop mock ${mock.number}`))));
  }

  async attempt(act) {
    this.said.textContent = "";
    try {
      await act();
    } catch (problem) {
      this.said.textContent = problem.message;
    }
  }
}

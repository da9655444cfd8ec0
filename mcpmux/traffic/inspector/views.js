// The configured views: what each selects, and how much its clients see.

import { get, Polled } from "./api.js";
import { h } from "./dom.js";
import * as format from "./format.js";

const KINDS = { tools: "Tools", prompts: "Prompts", resources: "Resources", templates: "Templates" };
const EXAMPLE = `[views.reading]
include = [{ readOnlyHint = true }, { kind = "resources" }]`;

export class Views extends Polled {
  /** `onFilter`: shows the exchanges that fit a filter. */
  constructor(element, onFilter) {
    super();
    this.element = element;
    this.onFilter = onFilter;
    this.open = new Set();
    this.round = 0;
  }

  start() {
    this.shown = null; // counts anew
    super.start();
  }

  async load() {
    try {
      const state = await get("/api/views");
      const shown = JSON.stringify(state);
      if (shown === this.shown) return;
      this.shown = shown;
      this.state = state;
      this.count();
    } catch (problem) {
      this.shown = null;
      this.element.replaceChildren(h("p", { class: "problem" }, problem.message));
    }
  }

  /** Asks for the numbers, which takes as long as upstreams need for their lists. */
  async count() {
    const round = ++this.round;
    this.counts = {};
    this.trouble = null;
    this.draw();
    if (!this.state.views.length) return;
    let counts = {};
    let trouble = null;
    try {
      ({ counts } = await get("/api/views/counts"));
    } catch (problem) {
      trouble = problem.message;
    }
    if (round !== this.round || this.shown === null) return;
    Object.assign(this, { counts, trouble });
    this.draw();
  }

  draw() {
    const { views, has_access_rules: hasRules } = this.state;
    const focused = document.activeElement?.dataset?.action;
    const again = h("button", { type: "button", class: "button", "data-action": "count", onclick: () => this.count() }, "Count again");
    this.element.replaceChildren(...(views.length ? [
      h("div", { class: "bar" }, h("h2", {}, "Views"), again, hasRules ? h("span", { class: "hint" }, "Access rules may hide some of it from a client.") : ""),
      this.trouble ? h("p", { class: "problem" }, this.trouble) : "",
      h("div", { class: "cards" }, views.map((view) => this.card(view))),
    ] : [h("div", { class: "bar" }, h("h2", {}, "Views")), none()]));
    if (focused) [...this.element.querySelectorAll("[data-action]")].find((each) => each.dataset.action === focused)?.focus();
  }

  card(view) {
    const count = this.counts[view.name];
    return h("article", { class: "card" },
      h("header", {}, h("h2", {}, view.name), this.link(view.name)),
      h("p", { class: "places", translate: "no" }, view.places.join(", ") || "no listener leads to it"),
      Object.entries(count?.missing ?? {}).map(([name, reason]) => h("p", { class: "trouble" }, `Counted without ${name}: ${reason}`)),
      h("dl", { class: "facts" }, numbers(count)),
      h("dl", { class: "selection" }, fact("For", view.principals.length ? view.principals.join(", ") : "everybody"),
        fact("Has", list(view.include.length ? view.include : ["everything"])),
        view.exclude.length ? fact("But not", list(view.exclude)) : "",
        view.is_searched ? fact("Tools", "are searched: a list has only find_tools and call_tool") : ""),
      view.overrides.length ? this.overrides(view) : h("p", { class: "hint" }, "It overrides nothing."));
  }

  overrides(view) {
    const details = h("details", { class: "subscriptions", open: this.open.has(view.name) },
      h("summary", { "data-action": `overrides ${view.name}` }, format.plural(view.overrides.length, "override")),
      h("table", {}, h("thead", {}, h("tr", {}, ["Upstream", "Kind", "Name", "New name"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, view.overrides.map((each) => h("tr", {}, h("td", {}, each.upstream), h("td", {}, each.kind),
          h("td", { class: "uri", translate: "no" }, each.name), h("td", { class: "uri", translate: "no" }, each.rename ?? "the same"))))));
    details.addEventListener("toggle", () => this.open[details.open ? "add" : "delete"](view.name));
    return details;
  }

  link(name) {
    const filter = `view=${name}`;
    const follow = (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      this.onFilter(filter);
    };
    return h("a", { href: `#filter=${encodeURIComponent(filter)}`, "data-action": `exchanges ${name}`, onclick: follow, "aria-label": `Exchanges in ${name}` }, "Exchanges");
  }
}

const fact = (name, ...value) => h("div", {}, h("dt", {}, name), h("dd", {}, ...value));
const list = (texts) => h("ul", {}, texts.map((text) => h("li", {}, text)));

function numbers(count) {
  const shown = (number) => (count ? format.count(number) : "…");
  return [...Object.entries(KINDS).map(([kind, name]) => fact(name, shown(count?.[kind]))),
    fact("Tokens of its lists", count ? `about ${format.count(count.tokens)}` : "…")];
}

function none() {
  return h("div", { class: "card none" },
    h("p", {}, "There are no views: every client sees all that it may use. A view selects some of it, for clients that connect to a path of its own. Add one to the configuration:"),
    h("pre", { translate: "no" }, EXAMPLE),
    h("p", {}, "Its clients connect to /mcp/reading. configs/README.md of mcpmux says more about views."));
}

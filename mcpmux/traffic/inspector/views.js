// The configured views: what each selects, and how much its clients see.

import { get } from "./api.js";
import * as format from "./format.js";
import { button, Copyable, facts, folded, html, Polled, table, URI } from "./html.js";

const KINDS = { tools: "Tools", prompts: "Prompts", resources: "Resources", templates: "Templates" };
const EXAMPLE = `[views.reading]
include = [{ readOnlyHint = true }, { kind = "resources" }]`;

/** `onFilter(filter)`: show the exchanges that fit it. */
export class Views extends Polled {
  /** @type {any} */
  state = { counts: {}, trouble: null }; // counts by view, or why there are none
  round = 0; // of counting

  async load(isFirst) {
    const [state, { endpoint }] = await Promise.all([get("/api/views"), this.props.admin.control()]);
    const shown = JSON.stringify(state);
    if (isFirst || shown !== this.shown) this.count();
    this.shown = shown;
    return { ...state, endpoint };
  }

  /** Ask for the numbers, which takes as long as upstreams need for their lists. */
  async count() {
    const round = ++this.round;
    const show = (counts, trouble) => {
      if (round === this.round) this.setState({ counts, trouble });
    };
    show({}, null);
    try {
      show((await get("/api/views/counts")).counts, null);
    } catch (problem) {
      show({}, /** @type {Error} */ (problem).message);
    }
  }

  page({ views, has_access_rules: hasRules, endpoint }) {
    const { counts, trouble } = this.state;
    return html`
      <div class="bar">
        <h2>Views</h2>
        ${button("Count again", () => this.count(), { "data-action": "count" })}
        ${hasRules && html`<span class="hint">Access rules may hide some of it from a client.</span>`}
      </div>
      ${trouble && html`<p class="problem">${trouble}</p>`}
      <div class="cards">
        ${views.map((view) => this.card(view, counts[view.name], endpoint))}${views.length === 1 && advice}
      </div>`;
  }

  card(view, count, endpoint) {
    const url = endpoint && endpoint.replace(/\/$/, "") + (view.name && `/${view.name}`);
    const { name, principals, include, exclude, is_searched: isSearched } = view;
    return html`
      <article key=${name} class="card">
        <header><h2>${name || "Everything"}</h2>${this.link(name)}</header>
        <p class="places" translate="no">${view.places.join(", ") || "no listener leads to it"}</p>
        ${view.places.some((place) => url?.endsWith(place)) && html`<${Copyable} text=${url} />`}
        ${Object.entries(count?.missing ?? {}).map(([upstream, reason]) => html`
          <p class="trouble">Counted without ${upstream}: ${reason}</p>`)}
        ${facts([
          ...Object.entries(KINDS).map(([kind, word]) => [word, count ? format.count(count[kind]) : "…"]),
          ["Tokens of its lists", count ? `about ${format.count(count.tokens)}` : "…"],
        ])}
        <dl class="selection">
          ${fact("For", principals.join(", ") || "everybody")}
          ${fact("Has", list(include.length ? include : ["everything"]))}
          ${exclude.length > 0 && fact("But not", list(exclude))}
          ${isSearched && fact("Tools", "are searched: a list has only find_tools and call_tool")}
        </dl>
        ${Object.entries(KINDS).map(([kind, word]) => contents(word, count?.names[kind] ?? [], count?.[kind]))}
        ${view.overrides.length > 0
          && folded(format.plural(view.overrides.length, "override"), table(OVERRIDE_COLUMNS, view.overrides))}
      </article>`;
  }

  link(name) {
    const filter = `view=${name}`;
    const follow = (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      this.props.onFilter(filter);
    };
    return html`
      <a href="#filter=${encodeURIComponent(filter)}" data-action="exchanges ${name}" onclick=${follow}
        aria-label="Exchanges in ${name || "no view"}">Exchanges</a>`;
  }
}

const fact = (name, value) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`;
const list = (texts) => html`<ul>${texts.map((text) => html`<li>${text}</li>`)}</ul>`;

/** Return what a client sees of one kind, closed. `number`: of all, which may be more than the names. */
const contents = (word, names, number) => names.length > 0 && folded(`${word} (${format.count(number)})`, html`
  <ul class="contents" translate="no">${names.map((name) => html`<li>${name}</li>`)}</ul>
  ${number > names.length && html`<p class="hint">and ${format.count(number - names.length)} more</p>`}`);

const OVERRIDE_COLUMNS = [
  { name: "Upstream", show: ({ upstream }) => upstream },
  { name: "Kind", show: ({ kind }) => kind },
  { name: "Name", cell: URI, show: ({ name }) => name },
  { name: "New name", cell: URI, show: ({ rename }) => rename ?? "the same" },
];

const advice = html`
  <div class="card none">
    <p>
      There are no views: every client sees all that it may use. A view selects some of it, for clients that connect to
      a path of its own. Add one to the configuration:
    </p>
    <pre translate="no">${EXAMPLE}</pre>
    <p>Its clients connect to /mcp/reading. configs/README.md of mcpmux says more about views.</p>
  </div>`;

// Exchanges as a capture file, or as a server that answers from them: what the filter finds, or what is marked.

import { get } from "./api.js";
import * as format from "./format.js";
import { button, Copyable, html, Widget } from "./html.js";

/** `filter`, `own`: of the exchanges that are shown. `admin`: see api.js. */
export class Saving extends Widget {
  /** @type {any} */
  state = { mocks: [], problem: null };

  componentDidMount() {
    this.act();
  }

  render({ filter, own }, { mocks, problem }) {
    const name = `mcpmux-${new Date().toISOString().replace(/[-:]|\..*/g, "")}Z`;
    const file = `${name}.jsonl`;
    const link = (words, wanted, kind = "capture") => html`
      <a class="button" download=${kind === "har" ? `${name}.har` : file}
        href="/api/${kind}?${new URLSearchParams({ filter: wanted, own })}">${words}</a>`;
    const start = (words, wanted) => button(words, () => this.act("/api/mocks", { filter: wanted }));
    return html`
      <div id="saving" class="saving">
        <div class="choices">
          ${link(filter ? "Save what the filter finds" : "Save all of them", filter)}
          ${link("Save what is marked", "marked")}
          ${link(filter ? "Save what the filter finds as HAR" : "Save all as HAR", filter, "har")}
          ${!own && start(filter ? "Mock what the filter finds" : "Mock all of them", filter)}
          ${!own && start("Mock what is marked", "marked")}
          <span>The file is a capture. To have it answered from, or to read it:</span>
          <code translate="no">mcpmux traffic mock ${file} --listen 127.0.0.1:9000</code>
          <code translate="no">mcpmux traffic stats ${file}</code>
        </div>
        <ul class="mocks" aria-label="Mocks that run">${mocks.map((mock) => this.mock(mock))}</ul>
        <p class="problem" role="status">${problem?.message}</p>
      </div>`;
  }

  mock({ number, url, requests, filter, not_served: notServed }) {
    const answers = `answers ${format.plural(requests, "request")} of ${filter || "all exchanges"}`;
    return html`
      <li key=${number}>
        <${Copyable} text=${url} />
        <span>${answers}${notServed ? `, not ${notServed}` : ""}</span>
        ${button(`Stop mock ${number}`, () => this.act(`/api/mocks/${number}/stop`))}
      </li>`;
  }

  /** Start or stop a mock, or do nothing, and show those that run then. */
  act(path = "", body = {}) {
    return this.attempt(async () => {
      if (path) await this.props.admin.post(path, body);
      return { ...await get("/api/mocks"), problem: null };
    });
  }
}

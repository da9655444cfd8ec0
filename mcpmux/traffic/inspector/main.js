// The inspector put together: pages, tabs, keys.

import { Admin, get } from "./api.js";
import { Client } from "./client.js";
import { Exchanges } from "./exchanges.js";
import * as format from "./format.js";
import { Held } from "./held.js";
import { button, createRef, hasModifier, html, tabs, Widget } from "./html.js";
import { Latency } from "./latency.js";
import { Replicas } from "./replicas.js";
import { Subscriptions } from "./subscriptions.js";
import { Upstreams } from "./upstreams.js";
import { render } from "./vendor/preact.js";
import { Views } from "./views.js";

const PAGES = {
  upstreams: "Upstreams", exchanges: "Exchanges", views: "Views", latency: "Latency", client: "Client",
  subscriptions: "Subscriptions", held: "Held",
};
const KEPT = "mcpmux page"; // in the storage of this tab of the browser
const LINKS = { connecting: "Connecting", live: "Live", lost: "Reconnecting", closed: "Not connected" };

const KEYS = Object.entries({
  "/": "search and filter", "j k": "next, previous exchange; arrow keys in the list, too", Enter: "open the exchange",
  Esc: "close it; take the filter away", m: "mark the exchange", p: "pause, go on", t: "timeline of many exchanges",
  "+ − 0 ← →": "in the timeline: zoom, show all, move", "1 … 8": "pages", "← →": "on a tab: the one beside it",
  "Ctrl Enter": "on the page Client: send", "a r e": "on a held exchange: let it go, refuse, edit", "?": "these keys",
});

/** The connection, in the header. */
class Status extends Widget {
  /** @type {any} */
  state = { link: "connecting", messages: 0 };

  render(_, { link, messages }) {
    return html`
      <div class="summary" id="summary">${messages > 0 && format.plural(messages, "message")}</div>
      <span class="link" id="link" role="status" data-state=${link}>${LINKS[link]}</span>`;
  }
}

/** The keys of the page, shown with `?`. */
class Keys extends Widget {
  box = createRef();

  show() {
    this.box.current.showModal();
  }

  render() {
    return html`
      <dialog ref=${this.box} id="keys" aria-label="Keys" onclick=${() => this.box.current.close()}>
        <dl>${KEYS.map(([key, what]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl>
        <button class="button">Close</button>
      </dialog>`;
  }
}

class App extends Widget {
  admin = new Admin();
  status = createRef();
  exchanges = createRef();
  client = createRef();
  keys = createRef();
  /** @type {any} */
  state = { page: sessionStorage.getItem(KEPT) ?? "upstreams", visible: !document.hidden, hasReplicas: false };

  async componentDidMount() {
    document.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("visibilitychange", () => this.setState({ visible: !document.hidden }));
    const { replicas } = await get("/api/replicas").catch(() => ({ replicas: [] }));
    this.setState({ hasReplicas: replicas.length > 0 });
  }

  get pages() {
    return this.state.hasReplicas ? { ...PAGES, replicas: "Replicas" } : PAGES;
  }

  /** Show a page, then do something there. */
  show(page, act = () => {}) {
    sessionStorage.setItem(KEPT, page);
    this.setState({ page }, () => {
      document.getElementById(`tab-${page}`)?.scrollIntoView({ block: "nearest", inline: "nearest" });
      act();
    });
  }

  /** Show the exchanges that fit a filter, in an order. */
  showExchanges(filter, sort) {
    this.show("exchanges", () => this.exchanges.current.show(filter, sort));
  }

  /** Show one exchange of clients. */
  showExchange(number) {
    this.show("exchanges", () => {
      this.exchanges.current.show("");
      this.exchanges.current.open(number, true);
    });
  }

  /** Fill the page of the client with a request, to be changed and sent. */
  openClient(request) {
    this.show("client", () => this.client.current.open(request));
  }

  key(event) {
    const isTaken = event.defaultPrevented || document.querySelector("dialog[open], :popover-open");
    if (isTaken || hasModifier(event)) return;
    const { page } = this.state;
    if (event.key === "Escape") {
      this.exchanges.current.escape();
    } else if (event.target.closest?.("input, select, textarea")) {
      // It is typed there.
    } else if (event.key === "/") {
      event.preventDefault();
      this.show("exchanges", () => this.exchanges.current.filter.current.focus());
    } else if (event.key === "?") {
      this.keys.current.show();
    } else if (/^[1-9]$/.test(event.key)) {
      const name = Object.keys(this.pages)[event.key - 1];
      if (name) this.show(name);
    } else if (page === "exchanges") {
      this.exchanges.current.key(event);
    }
  }

  render(_, { page, visible }) {
    const { admin } = this;
    const active = (name) => visible && page === name;
    const onFilter = (filter, sort) => this.showExchanges(filter, sort);
    const onExchange = (row) => this.showExchange(row);
    const view = (name, Page) => html`
      <section id="view-${name}" role="tabpanel" aria-labelledby="tab-${name}" class="view" tabindex="0"
        hidden=${name !== page}>
        <${Page} active=${active(name)} admin=${admin} onFilter=${onFilter} onExchange=${onExchange} />
      </section>`;
    return html`
      <a class="skip" href="#main">Skip to the page</a>
      <header class="top">
        <h1><img src="icon.svg" alt="" width="18" height="18" />mcpmux <span>inspector</span></h1>
        ${tabs("Pages", "", this.pages, page, (name) => this.show(name))}
        <${Status} ref=${this.status} />
        ${button("?", () => this.keys.current.show(), { class: "help", "aria-label": "Keys", title: "Keys (?)" })}
      </header>
      <main id="main" tabindex="-1">
        <${Exchanges} ref=${this.exchanges} hidden=${page !== "exchanges"} visible=${visible} admin=${admin}
          onShow=${() => this.show("exchanges")} onState=${(state) => this.status.current.setState(state)}
          onResend=${(request) => this.openClient(request)} />
        ${view("upstreams", Upstreams)}${view("views", Views)}${view("latency", Latency)}
        <section id="view-client" role="tabpanel" aria-labelledby="tab-client" hidden=${page !== "client"}>
          <${Client} ref=${this.client} active=${active("client")} admin=${admin}
            onExchange=${onExchange} />
        </section>
        ${view("subscriptions", Subscriptions)}${view("held", Held)}${view("replicas", Replicas)}
      </main>
      <${Keys} ref=${this.keys} />`;
  }
}

const app = createRef();
render(html`<${App} ref=${app} />`, document.body);

/** Fill the page of the client with a request. */
export const openClient = (request) => app.current.openClient(request);

// Who listens to what: lists and resources, their clients, and when a change was sent to those last.

import { get } from "./api.js";
import * as format from "./format.js";
import { folded, html, link, Polled, table, URI } from "./html.js";

/** `onFilter(filter)`: show the exchanges that fit it. */
export class Subscriptions extends Polled {
  load() {
    return get("/api/subscriptions");
  }

  page({ subscriptions }) {
    return html`
      <div class="bar"><h2>Subscriptions</h2></div>
      ${subscriptions.length ? html`
        <div class="wide" tabindex="0" role="region" aria-label="Subscriptions">
          ${table(this.columns, subscriptions, "listening", ({ uri, list }) => uri ?? list)}
        </div>` : html`<p class="hint">No client listens to anything.</p>`}`;
  }

  columns = [
    {
      name: "List or resource", show: ({ uri, list }) =>
        (uri ? html`<span ...${URI}>${uri}</span>` : `List of ${list}`),
    },
    {
      name: "Session", show: ({ uri, sessions, agreed }) =>
        (uri ? `${sessions.join(", ")}${agreed ? "" : " (asked for)"}` : "every upstream"),
    },
    { name: "Last change", show: ({ changed }) => (changed ? format.moment(Date.parse(changed)) : "–") },
    { name: "Sent to", isNumber: true, show: ({ changed, told }) => (changed ? format.count(told) : "–") },
    { name: "Clients", show: (subscription) => this.clients(subscription) },
  ];

  clients({ clients, more_clients: more }) {
    return folded(format.plural(clients.length + more, "client"), html`
      <ul>
        ${clients.map((client) => html`<li key=${client.peer}>${this.client(client)}</li>`)}
        ${more > 0 && html`<li>and ${format.count(more)} more</li>`}
      </ul>`);
  }

  client({ era, name, peer, revision, transport, principal, view }) {
    if (era === "replica") return "another replica, for its clients";
    const about = [principal, view ? `view ${view}` : null, revision ?? era, transport].filter(Boolean).join(", ");
    const show = () => this.props.onFilter(`peer=${peer}`);
    return html`${peer && link(name ? `${name} (${peer})` : peer, show)}${` ${about}`}`;
  }
}

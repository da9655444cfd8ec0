// Who listens to what: lists and resources, their clients, and when a change was sent to those last.

import { get } from "./api.js";
import * as format from "./format.js";
import { head, html, Polled } from "./html.js";

const COLUMNS = ["List or resource", "Session", "Last change", "Sent to", "Clients"];

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
          <table class="listening">
            ${head(COLUMNS, ["Sent to"])}
            <tbody>${subscriptions.map((each) => this.row(each))}</tbody>
          </table>
        </div>` : html`<p class="hint">No client listens to anything.</p>`}`;
  }

  row({ uri, list, sessions, agreed, changed, told, clients, more_clients: more }) {
    return html`
      <tr key=${uri ?? list}>
        <td class=${uri && "uri"} translate="no">${uri ?? `List of ${list}`}</td>
        <td>${uri ? `${sessions.join(", ")}${agreed ? "" : " (asked for)"}` : "every upstream"}</td>
        <td>${changed ? format.moment(Date.parse(changed)) : "–"}</td>
        <td class="number">${changed ? format.count(told) : "–"}</td>
        <td>
          <details>
            <summary>${format.plural(clients.length + more, "client")}</summary>
            <ul>
              ${clients.map((client) => html`<li key=${client.peer}>${this.client(client)}</li>`)}
              ${more > 0 && html`<li>and ${format.count(more)} more</li>`}
            </ul>
          </details>
        </td>
      </tr>`;
  }

  client({ era, name, peer, revision, transport, principal, view }) {
    if (era === "replica") return "another replica, for its clients";
    const about = [principal, view ? `view ${view}` : null, revision ?? era, transport].filter(Boolean).join(", ");
    const show = () => this.props.onFilter(`peer=${peer}`);
    return html`
      ${peer && html`<button type="button" class="more" onclick=${show}>${name ? `${name} (${peer})` : peer}</button>`}
      ${` ${about}`}`;
  }
}

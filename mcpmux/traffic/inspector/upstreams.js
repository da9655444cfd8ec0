// How the upstreams are: each with its sessions, and what those are subscribed to.

import { get } from "./api.js";
import * as format from "./format.js";
import { facts, head, html, Polled } from "./html.js";

const ACTIONS = {
  enable: { label: "Enable", when: ["disabled", "draining", "drained"] },
  drain: {
    label: "Drain", title: "Give it nothing more to do; it stays connected", when: ["ready", "failing", "connecting"],
  },
  restart: { label: "Restart", title: "A new session takes over; what is in flight is finished", except: "disabled" },
  disable: {
    label: "Disable", title: "As if it were not configured; what is in flight is finished", except: "disabled",
    question: (name) => `Disable ${name}? Clients lose what it offers until it is enabled again.`,
  },
};
const KINDS = { shared: "Shared", lane: "Legacy lane", private: "Private" };
const SESSION_COLUMNS = ["Session", "Kind", "State", "Revision", "Connected in"];
const SUBSCRIPTION_COLUMNS = ["Resource", "Session", "Listeners", "State"];

/** `admin`: see api.js. */
export class Upstreams extends Polled {
  load() {
    return get("/api/upstreams");
  }

  page({ upstreams }) {
    return html`<div class="cards">${upstreams.map((upstream) => this.card(upstream))}</div>`;
  }

  card(upstream) {
    const { name, state, trouble } = upstream;
    return html`
      <article key=${name} class="card" data-state=${state}>
        <header>
          <span class="dot" aria-hidden="true" /><h2>${name}</h2><span class="chip" data-state=${state}>${state}</span>
        </header>
        <p class="target" translate="no">${upstream.target}</p>
        ${trouble && html`<p class="trouble">${trouble}</p>`}
        ${facts([
          ["Server", [upstream.server, upstream.version].filter(Boolean).join(" ") || "not known"],
          ["Revision", upstream.revision ?? "not agreed"],
          ["Prefix", upstream.prefix || "none"],
          ["Since", upstream.since ? new Date(upstream.since).toLocaleString() : "–"],
          ["Restarts", format.count(upstream.restarts)],
          ["In flight", format.count(upstream.in_flight)],
          ["Offers", upstream.capabilities.join(", ") || "nothing"],
        ])}
        ${this.actions(upstream)}${sessionTable(upstream)}${subscriptionsOf(upstream)}
      </article>`;
  }

  actions({ name, state }) {
    const fit = Object.entries(ACTIONS).filter(([, { when, except }]) => when?.includes(state) ?? except !== state);
    return html`
      <div class="actions" role="group" aria-label="Actions for ${name}">
        ${fit.map(([action, { label, title, question }]) => html`
          <button key=${action} type="button" class="button" title=${title} data-action="${action} ${name}"
            onclick=${() => this.act(action, name, question?.(name))}>${label}</button>`)}
      </div>`;
  }

  async act(action, name, question) {
    if (question && !window.confirm(question)) return;
    try {
      await this.props.admin.post(`/api/upstreams/${encodeURIComponent(name)}/${action}`);
    } catch (problem) {
      window.alert(/** @type {Error} */ (problem).message);
    }
    await this.refresh();
  }
}

const sessionTable = ({ sessions, more_sessions: more }) => html`
  <table class="sessions">
    ${head(SESSION_COLUMNS)}
    <tbody>
      ${sessions.map((session) => html`
        <tr key=${session.key}>
          <td>${session.key}</td><td>${KINDS[session.kind] ?? session.kind}</td>
          <td><span class="chip" data-state=${session.state}>${session.state}</span></td>
          <td>${session.revision ?? "–"}</td><td class="number">${format.duration(session.connect_ms) || "–"}</td>
        </tr>`)}
      ${more > 0 && html`<tr><td colspan="5">and ${format.count(more)} more</td></tr>`}
    </tbody>
  </table>`;

function subscriptionsOf({ sessions }) {
  const number = sessions.reduce((sum, each) => sum + each.subscriptions.length + each.more_subscriptions, 0);
  if (!number) return html`<p class="hint">Nobody is subscribed to anything of it.</p>`;
  const all = sessions.flatMap(({ key, subscriptions }) => subscriptions.map((each) => ({ ...each, key })));
  return html`
    <details class="subscriptions">
      <summary>${format.plural(number, "subscription")}</summary>
      <table>
        ${head(SUBSCRIPTION_COLUMNS)}
        <tbody>
          ${all.map(({ uri, key, listeners, agreed }) => html`
            <tr>
              <td class="uri" translate="no">${uri}</td><td>${key}</td>
              <td class="number">${format.count(listeners)}</td><td>${agreed ? "agreed" : "asked for"}</td>
            </tr>`)}
        </tbody>
      </table>
    </details>`;
}

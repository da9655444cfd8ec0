// Where clients connect, and how the upstreams are: each with what is wrong, its output, its sessions.

import { get } from "./api.js";
import * as format from "./format.js";
import { button, card, Copyable, folded, html, link, Polled, table, URI, Widget } from "./html.js";

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
const SESSION_COLUMNS = [
  { name: "Session", show: ({ key }) => key },
  { name: "Kind", show: ({ kind }) => KINDS[kind] ?? kind },
  { name: "State", show: ({ state }) => html`<span class="chip" data-state=${state}>${state}</span>` },
  { name: "Revision", show: ({ revision }) => revision ?? "–" },
  { name: "Connected in", isNumber: true, show: ({ connect_ms: ms }) => format.duration(ms) || "–" },
];
const SUBSCRIPTION_COLUMNS = [
  { name: "Resource", cell: URI, show: ({ uri }) => uri },
  { name: "Session", show: ({ key }) => key },
  { name: "Listeners", isNumber: true, show: ({ listeners }) => format.count(listeners) },
  { name: "State", show: ({ agreed }) => (agreed ? "agreed" : "asked for") },
];

const WINDOW_SECONDS = 300;
/** What to do about a state, in words. */
const ADVICE = {
  disabled: "Clients do not see it. Enable it to use it.",
  drained: "It gets no requests. Enable it to use it again.",
  failing: "It is connected and does not answer. Restart it if that lasts.",
  "crash-loop": "Its process ends again and again: its output below may say why. Try its command in a terminal.",
};
const REFUSED = /\b(401|403)\b|refused the token|auth login/;

/** Return what to do about an upstream that clients cannot use. */
export function adviceFor({ name, state, trouble, command, output = [] }) {
  if (ADVICE[state]) return ADVICE[state];
  if (state !== "down") return "";
  if (REFUSED.test(trouble ?? "")) return `It wants a token: mcpmux auth login ${name}`;
  if (!command) return "Check that it runs at its address.";
  return output.length ? "Its output below may say why." : "Try its command in a terminal.";
}

/** `admin`: see api.js; `onFilter(filter)`: show the exchanges that fit it. */
export class Upstreams extends Polled {
  async load() {
    const [{ upstreams }, stats, { endpoint }] = await Promise.all([
      get("/api/upstreams"), get("/api/stats", { window: WINDOW_SECONDS, slots: 1 }), this.props.admin.control(),
    ]);
    return { upstreams, stats, endpoint };
  }

  page({ upstreams, stats, endpoint }) {
    const ready = upstreams.filter(({ state }) => state === "ready").length;
    return html`
      <div class="bar"><h2>Upstreams</h2><span class="hint">${ready} of ${upstreams.length} ready</span></div>
      <div class="cards">
        <${Connect} key="" endpoint=${endpoint} />
        ${upstreams.map((upstream) => this.card(upstream, stats))}
      </div>`;
  }

  card(upstream, { upstreams: measured, seconds }) {
    const { name, state, trouble, output, sessions, more_sessions: more, retry_seconds: retry } = upstream;
    const { count = 0, errors = 0, p50, p95 } = measured.find((each) => each.upstream === name) ?? {};
    const [advice, due] = [adviceFor(upstream), retry !== null && state !== "ready"];
    return card({
      id: name, name, state, target: upstream.command ?? upstream.target,
      trouble: (trouble || advice) && html`
        ${trouble}<span>${due && html`<b>Next try in ${format.duration(1000 * retry)}. </b>`}${advice}</span>`,
      pairs: [
        ["Server", [upstream.server, upstream.version].filter(Boolean).join(" ") || "not known"],
        ["Revision", upstream.revision ?? "not agreed"],
        ["Prefix", upstream.prefix || "none"],
        ["Since", upstream.since ? format.moment(Date.parse(upstream.since)) : "–"],
        ["Rate", format.rate(count / seconds)],
        ["Median", format.duration(p50) || "–"],
        ["95 %", format.duration(p95) || "–"],
        ["Failed", errors ? link(`${format.count(errors)} of ${format.count(count)}`,
          () => this.props.onFilter(`upstream=${name} failed`), { title: "The exchanges that failed" })
          : count ? `0 of ${format.count(count)}` : "–"],
        ["In flight", format.count(upstream.in_flight)],
        ["Restarts", format.count(upstream.restarts)],
        ["Offers", upstream.capabilities.join(", ") || "nothing"],
      ],
    }, html`
      ${this.actions(upstream)}
      ${output.length > 0 && folded(`Output (${format.plural(output.length, "line")})`, html`
        <pre class="output" tabindex="0" translate="no">${output.join("\n")}</pre>`, state !== "ready")}
      ${table(SESSION_COLUMNS, sessions, "sessions", ({ key }) => key)}
      ${more > 0 && html`<p class="hint">and ${format.count(more)} more</p>`}
      ${subscriptionsOf(upstream)}`);
  }

  actions({ name, state }) {
    const fit = Object.entries(ACTIONS).filter(([, { when, except }]) => when?.includes(state) ?? except !== state);
    return html`
      <div class="actions" role="group" aria-label="Actions for ${name}">
        ${fit.map(([action, { label, title, question }]) => button(label,
          () => this.act(action, name, question?.(name)), { key: action, title, "data-action": `${action} ${name}` }))}
      </div>`;
  }

  async act(action, name, question) {
    if (question && !window.confirm(question)) return;
    const done = this.props.admin.post(`/api/upstreams/${encodeURIComponent(name)}/${action}`);
    await done.catch((problem) => window.alert(problem.message));
    await this.refresh();
  }
}

/** Where clients connect, and what a host app needs for that. `endpoint`: the URL, null when there is none. */
class Connect extends Widget {
  /** @type {any} */
  state = { hosts: [], chosen: null };

  componentDidMount() {
    this.look();
  }

  componentDidUpdate(before) {
    if (before.endpoint !== this.props.endpoint) this.look();
  }

  async look() {
    const { endpoint } = this.props;
    if (endpoint) this.setState(await get("/api/hosts", { url: endpoint }).catch(() => ({})));
  }

  render({ endpoint }, { hosts, chosen }) {
    const host = hosts.find(({ name }) => name === chosen);
    return html`
      <article class="card connect">
        <header><h2>Connect a client</h2></header>
        ${endpoint ? html`<p><${Copyable} text=${endpoint} /></p>`
          : html`<p class="hint">mcpmux does not listen for HTTP here: the host app that started it is its client.</p>`}
        ${endpoint && html`
          <p class="hosts" role="group" aria-label="Host apps">
            ${hosts.map(({ name, title }) =>
              button(title, () => this.setState({ chosen: name }), { "aria-pressed": name === chosen }))}
          </p>`}
        ${host && (host.text ? html`
          <p class="hint">In <code>${host.file}</code>:</p><${Copyable} text=${host.text} isLong />`
          : html`<p class="hint">It takes no URL in its file: run <code>mcpmux install ${host.name}</code>.</p>`)}
      </article>`;
  }
}

function subscriptionsOf({ sessions }) {
  const number = sessions.reduce((sum, each) => sum + each.subscriptions.length + each.more_subscriptions, 0);
  if (!number) return html`<p class="hint">No subscriptions.</p>`;
  const all = sessions.flatMap(({ key, subscriptions }) => subscriptions.map((each) => ({ ...each, key })));
  return folded(format.plural(number, "subscription"), table(SUBSCRIPTION_COLUMNS, all));
}

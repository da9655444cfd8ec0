// A client of mcpmux: chooses from what it has, fills in a request, and sends it.

import { get } from "./api.js";
import { isEqual } from "./compare.js";
import { command } from "./copying.js";
import { Form } from "./form.js";
import * as format from "./format.js";
import { button, Copyable, createRef, html, options, stepByKey, Widget } from "./html.js";
import { isObject, parse } from "./json.js";
import { Run } from "./run.js";
import { expand, variables } from "./template.js";

const PAGES = 200; // of one list
const SHOWN = 300; // items; the search finds the others
/** Any request, as JSON. */
const RAW = {
  properties: { Method: { type: "string", format: "text" }, Params: { type: "object" } }, required: ["Params"],
};
const ANY = { method: "tools/list", params: {} };
const METHOD_NOT_FOUND = -32601;
const KEPT = "mcpmux sent"; // in the storage of this tab of the browser
const SENT = 30; // requests that are kept
const LABEL = 80; // characters of one in the list of them

const texts = (properties, required = []) => ({
  properties: Object.fromEntries(properties.map(({ name, ...about }) => [name, { type: "string", ...about }])),
  required,
});

/** What can be chosen: how it is listed, and the request that is made of an item and the values of its form. */
const KINDS = {
  tools: {
    label: "Tools", list: "tools/list", method: "tools/call", id: (item) => item.name,
    schema: (item) => item.inputSchema, params: (item, values) => ({ name: item.name, arguments: values }),
    values: (params) => params.arguments,
  },
  resources: {
    label: "Resources", list: "resources/list", method: "resources/read", id: (item) => item.uri, schema: () => ({}),
    params: (item) => ({ uri: item.uri }), values: () => ({}),
  },
  resourceTemplates: {
    label: "Templates", list: "resources/templates/list", method: "resources/read", id: (item) => item.uriTemplate,
    schema: (item) => texts(variables(item.uriTemplate).map((name) => ({ name }))),
    params: (item, values) => ({ uri: expand(item.uriTemplate, values) }), values: () => ({}),
    reference: (item) => ({ type: "ref/resource", uri: item.uriTemplate }),
  },
  prompts: {
    label: "Prompts", list: "prompts/list", method: "prompts/get", id: (item) => item.name,
    schema: ({ arguments: all = [] }) => texts(
      all.map(({ name, title, description }) => ({ name, title, description })),
      all.filter((each) => each.required).map((each) => each.name)),
    params: (item, values) => ({ name: item.name, arguments: values }), values: (params) => params.arguments,
    reference: (item) => ({ type: "ref/prompt", name: item.name }),
  },
};

/** `active`: it is shown. `onExchange(row)`: show an exchange. `admin`: see api.js. */
export class Client extends Widget {
  send = createRef();
  form = createRef();
  values = createRef();
  json = createRef();
  run = createRef();
  updates = createRef();
  memory = { roots: "" };
  lists = {}; // by kind: what will be its items
  /** @type {object | null} */
  filled = null; // stands for a request that nobody has changed or sent since
  /** @type {any} */
  state = {
    views: [], upstreams: [], view: "", upstream: "", kind: "tools", there: {}, words: {}, problem: null,
    item: null, of: KINDS.tools, request: ANY, asJson: true, round: 0, subscribed: [], isRunning: false,
    command: null, sent: parse(sessionStorage.getItem(KEPT) ?? "[]"),
  };

  componentDidUpdate(before) {
    if (this.props.active && !before.active) this.ready ??= this.load(); // once: `Reload` does so again
  }

  load() {
    return this.attempt(async () => {
      const { problem } = await get("/api/calls");
      if (problem) throw new Error(problem);
      const [{ views }, { upstreams }] = await Promise.all([get("/api/views"), get("/api/upstreams")]);
      await this.change({ views: views.filter(({ name }) => name), upstreams });
      await this.show(this.state.kind);
    });
  }

  /** Set some of the state, and return when it is shown. */
  change(state) {
    return new Promise((done) => this.setState(state, () => done(undefined)));
  }

  reload(view = this.state.view) {
    this.lists = {};
    this.setState({ view, there: {} });
    this.ready = this.load();
  }

  async show(kind) {
    await this.change({ kind, problem: null });
    await this.attempt(async () => void await this.list(kind));
  }

  /** Return all items of a kind, asked for once. */
  list(kind) {
    const { lists } = this;
    lists[kind] ??= this.walk(kind).then(async (items) => {
      if (lists === this.lists) await this.change(({ there }) => ({ there: { ...there, [kind]: items } }));
      return items;
    });
    lists[kind].catch(() => delete lists[kind]);
    return lists[kind];
  }

  async walk(kind) {
    const { view } = this.state;
    const items = [];
    let cursor;
    for (let page = 0; page < PAGES; page++) {
      const params = cursor === undefined ? {} : { cursor };
      const { result, error } = await this.props.admin.call({ method: KINDS[kind].list, params, view });
      if (error?.code === METHOD_NOT_FOUND) break;
      if (error) throw new Error(error.message);
      items.push(...result[kind]);
      cursor = result.nextCursor ?? undefined;
      if (cursor === undefined) break;
    }
    return items;
  }

  render({ onExchange, admin }, state) {
    const { kind, views, upstreams, view, upstream, words, problem, item, of, isRunning, sent, subscribed } = state;
    const found = this.found();
    const uri = item && of === KINDS.resources ? item.uri : null;
    const links = { onExchange, admin, memory: this.memory, onRead: (link) => this.open(read(link)) };
    return html`
      <div class="bar">
        <select aria-label="View" hidden=${!views.length} value=${view} onchange=${on((value) => this.reload(value))}>
          ${options(named("everything", views))}
        </select>
        <select aria-label="Kind" value=${kind} onchange=${on((value) => this.show(value))}>
          ${options(Object.entries(KINDS).map(([name, { label }]) => [name, label]))}
        </select>
        <select aria-label="Upstream" value=${upstream} onchange=${on((value) => this.setState({ upstream: value }))}>
          ${options(named("All upstreams", upstreams))}
        </select>
        <input type="search" placeholder="Search" aria-label="Search" autocomplete="off" spellcheck=${false}
          value=${words[kind] ?? ""} oninput=${on((value) => this.setState({ words: { ...words, [kind]: value } }))} />
        <output class="count">${found ? format.plural(found.length, "item") : "Loading …"}</output>
        ${button("Reload", () => this.reload())}
        ${button("Any request", () => this.choose(null, this.written(false) ?? ANY))}
        <select aria-label="Sent before" hidden=${!sent.length} value=""
          onchange=${on((place) => this.open(sent[place]))}>
          ${options([["", "Sent before …"], ...sent.map((request, place) => [place, labelOf(request)])])}
        </select>
      </div>
      <p class="problem" role="alert" hidden=${!problem}>${problem?.message}</p>
      <div class="split">
        <div class="listing">
          <div class="items" role="listbox" aria-label="What mcpmux has" onkeydown=${stepByKey}>
            ${this.items(found ?? [])}
          </div>
        </div>
        <article class="detail" aria-label="Request">
          <form ref=${this.form} class="request" novalidate oninput=${() => this.typed()}
            onsubmit=${(event) => this.submit(event)} onkeydown=${(event) => this.sendByKey(event)}>
            ${this.head()}${this.fields()}
            <div class="actions">
              <button ref=${this.send} class="button primary">Send</button>
              ${button("Cancel", () => this.run.current.cancel(), { disabled: !isRunning })}
              ${button(subscribed.includes(uri) ? "Unsubscribe" : "Subscribe", () => this.subscribe(uri),
                { hidden: uri === null })}
              ${button("As command", () => this.showCommand())}
            </div>
            ${state.command && html`<${Copyable} text=${state.command} isLong />`}
          </form>
          <${Run} ref=${this.run} ...${links} onState=${(isNow) => this.setState({ isRunning: isNow })} />
          <${Run} ref=${this.updates} ...${links} onState=${() => {}} />
        </article>
      </div>`;
  }

  /** Return the items of the kind, the upstream and the search; undefined while they are loaded. */
  found() {
    const { kind, there, upstream, upstreams, words } = this.state;
    const { id } = KINDS[kind];
    const prefix = upstreams.find(({ name }) => name === upstream)?.prefix;
    const sought = (words[kind] ?? "").trim().toLowerCase();
    const text = (item) => [id(item), item.title, item.name, item.description].join(" ").toLowerCase();
    return there[kind]?.filter((item) => (!prefix || isOf(prefix, id(item))) && text(item).includes(sought));
  }

  items(found) {
    const { kind, item: chosen, of } = this.state;
    const { id } = KINDS[kind];
    const isChosen = (item) => chosen !== null && of === KINDS[kind] && id(item) === id(chosen);
    const shown = found.slice(0, SHOWN);
    const first = shown.find(isChosen) ?? shown[0];
    const left = found.length - shown.length;
    return html`
      ${shown.map((item) => html`
        <button key=${`${kind} ${id(item)}`} type="button" role="option" class="item" data-id=${id(item)}
          tabindex=${item === first ? 0 : -1} aria-selected=${isChosen(item)} onclick=${() => this.choose(item)}>
          <span class="name" translate="no">${id(item)}</span>
          <span class="hint">${item.title ?? item.annotations?.title ?? (item.name !== id(item) && item.name)}</span>
        </button>`)}
      ${left > 0 && html`<p class="hint">${format.count(left)} more; search for them</p>`}`;
  }

  // The request

  head() {
    const { item, of, asJson } = this.state;
    const hint = hintOf(item?.annotations);
    const turn = (event) => this.turn(event.target.checked);
    return html`
      <header>
        <div class="title">
          <h2 translate="no">${item ? of.id(item) : "Any request"}</h2>
          ${hint && html`<span class="chip">${hint}</span>`}
          ${item && html`
            <label class="own">
              <input ref=${this.json} type="checkbox" checked=${asJson} onchange=${turn} />JSON
            </label>`}
        </div>
        ${item?.description && html`<p class="about">${String(item.description)}</p>`}
      </header>`;
  }

  /** Return the fields, which are new ones whenever something is filled in. */
  fields() {
    const { item, of, request, asJson, round } = this.state;
    const form = (content) => html`<${Form} key=${round} ref=${this.values} id="request" ...${content} />`;
    if (asJson) {
      const { method, params } = request ?? { method: of.method, params: of.params(item, {}) };
      return form({ schema: RAW, values: { Method: method, Params: params } });
    }
    const complete = of.reference && ((...typed) => this.complete(of.reference(item), ...typed));
    const values = request && (of.values(request.params) ?? {});
    return form({ schema: of.schema(item), values: isObject(values) ? values : null, complete });
  }

  /**
   * Fill in a request, as a form when it is about something that is there, else as JSON.
   * @param {{method: string, params?: any, view?: string}} request
   */
  async open({ method, params = {}, view = this.state.view }) {
    const { _meta, requestState, inputResponses, ...own } = params; // of another exchange
    const request = { method, params: own };
    await this.choose(null, request);
    const { filled } = this;
    if (view !== this.state.view) {
      await this.change({ views: [{ name: view }] }); // the others come with the lists
      this.reload(view);
    }
    this.send.current.focus();
    await (this.ready ??= this.load());
    for (const [kind, { method: its, id }] of Object.entries(KINDS)) {
      if (its !== method) continue;
      const items = await this.list(kind).catch(() => []);
      const item = items.find((each) => id(each) === (own.name ?? own.uri));
      if (!item || this.filled !== filled) continue;
      this.setState({ words: {}, upstream: "" });
      await this.show(kind);
      if (this.filled !== filled) return; // somebody has gone on with it
      await this.choose(item, request);
      await this.keep(request);
      return;
    }
  }

  /** @param {object} [request] */
  choose(item, request) {
    this.run.current.clear();
    this.filled = {};
    const asJson = item === null;
    return this.fill(request, asJson, { item, of: KINDS[this.state.kind], isRunning: false });
  }

  /** Make the fields anew. `request`: what is in them at first. */
  fill(request, asJson, more = {}) {
    return this.change(({ round }) => ({ ...more, request, asJson, round: round + 1, command: null }));
  }

  async turn(asJson) {
    const request = this.written(false);
    if (request) await this.fill(request, asJson);
    else await this.change({ asJson: true });
    if (request && !asJson) await this.keep(request);
    this.json.current.focus();
  }

  /** Go back to JSON when the form cannot hold this request. */
  async keep(request) {
    if (isEqual(this.written(false), request)) return;
    await this.fill(request, true);
    this.values.current.blame("Params", "The form cannot hold all of this.");
  }

  /** Return the request in the fields; null when it is wrong, with the reason there. `strict`: see `Form.read`. */
  written(strict = true) {
    const { item, of, asJson } = this.state;
    const values = this.values.current.read(strict);
    if (!asJson) return values && { method: of.method, params: of.params(item, values) };
    return values?.Params ? { method: (values.Method ?? "").trim(), params: values.Params } : null;
  }

  submit(event) {
    event.preventDefault();
    this.filled = null;
    const request = this.written();
    if (!request) return;
    const { view, sent: before } = this.state;
    this.run.current.start(request.method, request.params, view);
    const sent = [...new Set([{ ...request, view }, ...before].map((each) => JSON.stringify(each)))].slice(0, SENT);
    this.setState({ sent: sent.map((each) => parse(each)) });
    sessionStorage.setItem(KEPT, `[${sent}]`);
  }

  /** Take note that the request is no more what was filled in. */
  typed() {
    this.filled = null;
    if (this.state.command) this.setState({ command: null });
  }

  /** Show the request as a command, to be copied. */
  async showCommand() {
    const request = this.written();
    if (!request) return;
    const { view } = this.state;
    const { endpoint } = await this.props.admin.control();
    const text = endpoint ? command({ view }, request, endpoint) : "mcpmux does not listen for HTTP.";
    this.setState({ command: text ?? `No command sends ${request.method}.` });
  }

  sendByKey(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.form.current.requestSubmit();
  }

  /** Subscribe to a resource, or end that; one request listens to all of them. */
  subscribe(uri) {
    const { subscribed: before, view } = this.state;
    const subscribed = before.includes(uri) ? before.filter((each) => each !== uri) : [...before, uri];
    this.setState({ subscribed });
    const updates = this.updates.current;
    updates.clear();
    const notifications = { resourceSubscriptions: subscribed };
    if (subscribed.length) updates.start("subscriptions/listen", { notifications }, view);
  }

  async complete(ref, name, value, others) {
    this.completing?.abort();
    this.completing = new AbortController();
    const params = { ref, argument: { name, value }, context: { arguments: others } };
    const request = { method: "completion/complete", params, view: this.state.view };
    try {
      const { result } = await this.props.admin.call(request, this.completing.signal);
      return result?.completion?.values ?? [];
    } catch {
      return []; // suggestions are only a help
    }
  }
}

const isOf = (prefix, id) => [`${prefix}__`, `${prefix}+`, `ui://${prefix}/`].some((each) => id.startsWith(each));
const on = (take) => (event) => take(event.target.value);
const read = (uri) => ({ method: "resources/read", params: { uri } });

const named = (all, some) => [["", all], ...some.map(({ name }) => [name, name])];

function labelOf({ method, params: { name, uri, arguments: values, ...rest } }) {
  const words = [method, name ?? uri ?? JSON.stringify(rest), values && JSON.stringify(values)];
  return words.filter(Boolean).join(" ").slice(0, LABEL);
}

/** Return what annotations promise; empty when that is nothing. */
function hintOf(annotations) {
  const { readOnlyHint, destructiveHint } = annotations ?? {};
  if (readOnlyHint === true) return "reads only";
  if (destructiveHint === false) return "destroys nothing";
  return readOnlyHint === false || destructiveHint === true ? "may destroy" : "";
}

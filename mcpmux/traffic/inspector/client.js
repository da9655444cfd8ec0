// A client of mcpmux: chooses from what it has, fills in a request, and sends it.

import { call, get } from "./api.js";
import { compare } from "./compare.js";
import { h, setText } from "./dom.js";
import { Form, readJson } from "./form.js";
import * as format from "./format.js";
import { isObject } from "./json.js";
import { Run } from "./run.js";
import { expand, variables } from "./template.js";

const PAGES = 200; // of one list
const SHOWN = 300; // items; the search finds the others
const ANY = { method: "tools/list", params: {} };
const METHOD_NOT_FOUND = -32601;
const texts = (names, about = {}, required = []) => ({ properties: Object.fromEntries(names.map((name) => [name, { type: "string", ...about[name] }])), required });

const KINDS = {
  tools: {
    label: "Tools", list: "tools/list", method: "tools/call", id: (item) => item.name, schema: (item) => item.inputSchema,
    params: (item, values) => ({ name: item.name, arguments: values }), values: (params) => params.arguments,
  },
  resources: {
    label: "Resources", list: "resources/list", method: "resources/read", id: (item) => item.uri, schema: () => ({}),
    params: (item) => ({ uri: item.uri }), values: () => ({}),
  },
  resourceTemplates: {
    label: "Templates", list: "resources/templates/list", method: "resources/read", id: (item) => item.uriTemplate,
    schema: (item) => texts(variables(item.uriTemplate)), params: (item, values) => ({ uri: expand(item.uriTemplate, values) }), values: () => ({}),
    reference: (item) => ({ type: "ref/resource", uri: item.uriTemplate }),
  },
  prompts: {
    label: "Prompts", list: "prompts/list", method: "prompts/get", id: (item) => item.name,
    schema: ({ arguments: all = [] }) => texts(all.map((each) => each.name), Object.fromEntries(all.map((each) => [each.name, { title: each.title, description: each.description }])),
      all.filter((each) => each.required).map((each) => each.name)),
    params: (item, values) => ({ name: item.name, arguments: values }), values: (params) => params.arguments,
    reference: (item) => ({ type: "ref/prompt", name: item.name }),
  },
};

export class Client {
  /** `onExchange(row)`: shows an exchange. */
  constructor(element, onExchange) {
    this.lists = {}; // by kind: what will be its items
    this.there = {}; // by kind: its items
    this.subscribed = new Set(); // URIs
    this.item = null; // what is chosen, of `kind`; null for any request
    this.kind = "tools";
    const again = () => this.reload();
    this.view = h("select", { "aria-label": "View", hidden: true, onchange: again });
    this.kinds = h("select", { "aria-label": "Kind", onchange: () => this.show(this.kinds.value) }, Object.entries(KINDS).map(([kind, { label }]) => h("option", { value: kind }, label)));
    this.upstream = h("select", { "aria-label": "Upstream", onchange: () => this.draw() });
    this.search = h("input", { type: "search", placeholder: "Search", "aria-label": "Search", autocomplete: "off", spellcheck: "false", oninput: () => this.draw() });
    this.count = h("output", { class: "count" });
    this.items = h("div", { class: "items", role: "listbox", "aria-label": "What mcpmux has", onkeydown: (event) => this.key(event) });
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.head = h("header", {});
    this.fields = h("div", {});
    this.send = h("button", { class: "button primary" }, "Send");
    this.cancel = h("button", { type: "button", class: "button", disabled: true, onclick: () => this.run.cancel() }, "Cancel");
    this.listen = h("button", { type: "button", class: "button", hidden: true, onclick: () => this.subscribe() }, "Subscribe");
    this.form = h("form", { class: "request", oninput: () => (this.filled = null), onsubmit: (event) => this.submit(event), onkeydown: (event) => this.sendByKey(event) }, this.head, this.fields,
      h("div", { class: "actions" }, this.send, this.cancel, this.listen));
    const outcome = h("div", {});
    const updates = h("div", {});
    const read = (uri) => this.open({ method: "resources/read", params: { uri } });
    this.run = new Run(outcome, (running) => this.running(running), onExchange, read);
    this.updates = new Run(updates, () => {}, onExchange, read);
    element.append(
      h("div", { class: "bar" }, this.view, this.kinds, this.upstream, this.search, this.count,
        h("button", { class: "button", onclick: again }, "Reload"), h("button", { class: "button", onclick: () => this.choose(null, this.written(false) ?? ANY) }, "Any request")),
      this.problem, h("div", { class: "split" }, h("div", { class: "listing" }, this.items), h("article", { class: "detail", "aria-label": "Request" }, this.form, outcome, updates)));
    this.choose(null, ANY);
  }

  /** Loads what there is, once: `Reload` does so again. */
  start() {
    this.ready ??= this.load();
  }

  stop() {} // what runs goes on

  async load() {
    try {
      const { problem } = await get("/api/calls");
      if (problem) throw new Error(problem);
      const [{ views }, { upstreams }] = await Promise.all([get("/api/views"), get("/api/upstreams")]);
      options(this.view, "everything", views);
      this.view.hidden = views.length === 0;
      this.prefixes = Object.fromEntries(upstreams.map((each) => [each.name, each.prefix]));
      options(this.upstream, "All upstreams", upstreams);
      await this.show(this.kind);
    } catch (problem) {
      this.report(problem);
    }
  }

  reload() {
    this.lists = {};
    this.there = {};
    this.ready = this.load();
  }

  report(problem) {
    this.problem.hidden = problem === null;
    setText(this.problem, problem?.message ?? "");
  }

  async show(kind) {
    this.kind = this.kinds.value = kind;
    this.report(null);
    this.draw();
    try {
      await this.list(kind);
    } catch (problem) {
      this.report(problem);
    }
    this.draw();
  }

  /** All items of a kind, asked for once. */
  list(kind) {
    const { lists, there } = this;
    lists[kind] ??= this.walk(kind).then((items) => (there[kind] = items));
    lists[kind].catch(() => delete lists[kind]);
    return lists[kind];
  }

  async walk(kind) {
    let items = [];
    let cursor;
    for (let page = 0; page < PAGES; page += 1) {
      const { result, error } = await call({ method: KINDS[kind].list, params: cursor === undefined ? {} : { cursor }, view: this.view.value });
      if (error?.code === METHOD_NOT_FOUND) break;
      if (error) throw new Error(error.message);
      items = items.concat(result[kind]);
      cursor = result.nextCursor;
      if (cursor === undefined || cursor === null) break;
    }
    return items;
  }

  draw() {
    const { id } = KINDS[this.kind];
    const chosen = this.item && this.of === KINDS[this.kind] ? id(this.item) : null;
    const all = this.there[this.kind];
    const words = this.search.value.trim().toLowerCase();
    const prefix = this.prefixes?.[this.upstream.value];
    const found = (all ?? []).filter((item) => (!prefix || isOf(prefix, id(item))) && (!words || `${id(item)} ${item.title ?? ""} ${item.name} ${item.description ?? ""}`.toLowerCase().includes(words)));
    setText(this.count, all ? format.plural(found.length, "item") : "Loading …");
    const focused = this.items.contains(document.activeElement);
    this.items.replaceChildren(...found.slice(0, SHOWN).map((item) => this.option(item, id(item), id(item) === chosen)),
      found.length > SHOWN ? h("p", { class: "hint" }, `${format.count(found.length - SHOWN)} more; search for them`) : "");
    const first = this.items.querySelector("[aria-selected=true]") ?? this.items.querySelector("[role=option]");
    if (first) first.tabIndex = 0;
    if (focused) first?.focus();
  }

  option(item, id, isChosen) {
    return h("button", { type: "button", role: "option", class: "item", tabindex: -1, "aria-selected": isChosen, "data-id": id, onclick: () => this.choose(item) },
      h("span", { class: "name", translate: "no" }, id), h("span", { class: "hint" }, item.title ?? item.annotations?.title ?? (item.name === id ? "" : item.name)));
  }

  key(event) {
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    const next = step && document.activeElement[step];
    if (!step) return;
    event.preventDefault();
    next?.focus?.();
  }

  // The request

  /** Somebody wants to send this: as a form when it is about something that is there, else as JSON. */
  async open({ method, params = {}, view = this.view.value }) {
    const { _meta, requestState, inputResponses, ...own } = params; // of another exchange
    this.choose(null, { method, params: own });
    const { filled } = this;
    if (view !== this.view.value) {
      options(this.view, "everything", [{ name: view }]); // the others come with the lists
      this.view.value = view;
      this.reload();
    }
    this.send.focus();
    this.start();
    await this.ready;
    for (const [kind, { method: its, id }] of Object.entries(KINDS)) {
      if (its !== method) continue;
      const items = await this.list(kind).catch(() => []);
      const item = items.find((each) => id(each) === (own.name ?? own.uri));
      if (!item || this.filled !== filled) continue;
      this.search.value = this.upstream.value = "";
      await this.show(kind);
      if (this.filled !== filled) return; // somebody has gone on with it
      this.choose(item, { method, params: own });
      this.keep({ method, params: own });
      return;
    }
  }

  choose(item, request = null) {
    this.run.clear();
    this.running(false);
    this.item = item;
    this.of = KINDS[this.kind];
    this.asJson = item === null;
    this.filled = {};
    this.fill(request);
    this.draw();
  }

  /** Makes the fields. `request`: what is in them at first. */
  fill(request) {
    const { item, of } = this;
    this.values = null;
    this.listen.hidden = item === null || of !== KINDS.resources;
    this.sayListen();
    this.head.replaceChildren(
      h("div", { class: "title" }, h("h2", { translate: "no" }, item ? of.id(item) : "Any request"), ...hints(item),
        item ? h("label", { class: "own" }, h("input", { type: "checkbox", checked: this.asJson, onchange: (event) => this.turn(event.target.checked) }), "JSON") : ""),
      item?.description ? h("p", { class: "about" }, String(item.description)) : "");
    if (this.asJson) {
      const { method, params } = request ?? { method: of.method, params: of.params(item, {}) };
      this.fields.replaceChildren(...this.raw(method, params));
      return;
    }
    const complete = of.reference ? (...typed) => this.complete(of.reference(item), ...typed) : null;
    const values = request && (of.values(request.params) ?? {});
    this.values = new Form(of.schema(item), isObject(values) ? values : null, complete);
    this.fields.replaceChildren(this.values.element);
  }

  raw(method, params) {
    this.method = h("input", { id: "raw-method", value: method, autocomplete: "off", spellcheck: "false" });
    this.params = h("textarea", { id: "raw-params", class: "json", rows: 8, spellcheck: "false", "aria-describedby": "raw-problem" });
    this.params.value = JSON.stringify(params, null, 2);
    this.wrong = h("span", { id: "raw-problem", class: "wrong", role: "alert" });
    return [h("div", { class: "fields" }, h("div", { class: "field" }, h("label", { for: "raw-method" }, "Method"), this.method),
      h("div", { class: "field" }, h("label", { for: "raw-params" }, "Params"), this.params, this.wrong))];
  }

  turn(asJson) {
    const request = this.written(false);
    this.asJson = asJson || request === null;
    if (request) this.fill(request);
    if (request && !asJson) this.keep(request);
    const box = this.head.querySelector("input");
    box.checked = this.asJson;
    box.focus();
  }

  /** Goes back to JSON when the form cannot hold this request. */
  keep(request) {
    if (compare(this.written(false), request).every((marks) => marks.size === 0)) return;
    this.asJson = true;
    this.fill(request);
    setText(this.wrong, "The form cannot hold all of this.");
  }

  /** What the fields say; null when they make no sense, which they then say. `strict`: see `Form.read`. */
  written(strict = true) {
    if (!this.values) {
      try {
        const params = readJson(this.params.value.trim() || "{}");
        setText(this.wrong, isObject(params) ? "" : "This must be an object.");
        return isObject(params) ? { method: this.method.value.trim(), params } : null;
      } catch (error) {
        setText(this.wrong, error.message);
        return null;
      }
    }
    const values = this.values.read(strict);
    return values && { method: this.of.method, params: this.of.params(this.item, values) };
  }

  submit(event) {
    event.preventDefault();
    this.filled = null;
    const request = this.written();
    if (request) this.run.start(request.method, request.params, this.view.value);
  }

  sendByKey(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.form.requestSubmit();
  }

  /** Subscribes to the resource, or ends that; one request listens to all of them. */
  subscribe() {
    const { uri } = this.item;
    if (!this.subscribed.delete(uri)) this.subscribed.add(uri);
    this.sayListen();
    this.updates.clear();
    if (this.subscribed.size) this.updates.start("subscriptions/listen", { notifications: { resourceSubscriptions: [...this.subscribed] } }, this.view.value);
  }

  sayListen() {
    setText(this.listen, this.subscribed.has(this.item?.uri) ? "Unsubscribe" : "Subscribe");
  }

  running(running) {
    this.cancel.disabled = !running;
  }

  async complete(ref, name, value, others) {
    this.completing?.abort();
    this.completing = new AbortController();
    try {
      const { result } = await call({ method: "completion/complete", params: { ref, argument: { name, value }, context: { arguments: others } }, view: this.view.value }, this.completing.signal);
      return result?.completion?.values ?? [];
    } catch {
      return []; // suggestions are only a help
    }
  }
}

const isOf = (prefix, id) => [`${prefix}__`, `${prefix}+`, `ui://${prefix}/`].some((each) => id.startsWith(each));

/** What a select offers; its choice stays. */
function options(select, all, named) {
  const { value } = select;
  select.replaceChildren(h("option", { value: "" }, all), ...named.map(({ name }) => h("option", { value: name, selected: name === value }, name)));
}

function hints(item) {
  const { readOnlyHint, destructiveHint } = item?.annotations ?? {};
  const words = readOnlyHint === true ? "reads only" : destructiveHint === false ? "destroys nothing" : readOnlyHint === false || destructiveHint === true ? "may destroy" : "";
  return words ? [h("span", { class: "chip" }, words)] : [];
}

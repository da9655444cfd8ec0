// Exchanges that wait for a person, who lets them go, changes, refuses or answers them; and which ones are to wait.

import { get } from "./api.js";
import * as format from "./format.js";
import { Form } from "./form.js";
import { facts, html, Polled, Widget } from "./html.js";
import { isObject } from "./json.js";
import { readJson } from "./schema.js";
import { createRef } from "./vendor/preact.js";

const MOMENTS = { request: ["request"], result: ["result"], both: ["request", "result"] };
const AFTER = { pass: "it goes on", refuse: "it is refused" };
const ANSWER = { content: [{ type: "text", text: "" }] };

/** `admin`: see api.js. `onExchange(row)`: show it in the list. */
export class Held extends Polled {
  filter = createRef();

  load() {
    return get("/api/held");
  }

  page({ held, order }) {
    const decide = async (key, verdict) => {
      await this.props.admin.post(`/api/held/${encodeURIComponent(key)}`, verdict);
      await this.refresh();
    };
    const count = held.length ? `${format.plural(held.length, "exchange")} held` : "No exchange is held.";
    return html`
      <${Order} order=${order} onOrder=${(wanted) => this.order(wanted)} />
      <p role="status" class="hint">${count}</p>
      <div class="cards">
        ${held.map((each) => html`<${Card} key=${each.key} held=${each} onDecide=${decide} ...${this.props} />`)}
      </div>`;
  }

  async order(order) {
    await this.props.admin.post("/api/held", order);
    await this.refresh();
  }
}

/** What is to be held, besides what the configuration holds. */
class Order extends Widget {
  /** @type {any} */
  state = { problem: "" };

  render({ order }, { problem }) {
    const moment = order.on.length > 1 ? "both" : order.on[0];
    return html`
      <form class="bar" onsubmit=${(event) => this.submit(event)}>
        <label class="filter">
          <span class="unseen">Filter of the exchanges to hold</span>
          <input name="filter" defaultValue=${order.filter} placeholder="method=tools/call name=delete*"
            autocomplete="off" spellcheck="false" aria-invalid=${Boolean(problem)} aria-describedby="order-problem" />
        </label>
        <select name="on" aria-label="When">
          ${Object.keys(MOMENTS).map((name) => html`
            <option value=${name} selected=${name === moment}>${name}</option>`)}
        </select>
        <label>for <input name="seconds" size="4" inputmode="numeric" defaultValue=${order.seconds} /> s</label>
        <select name="at_timeout" aria-label="Then">
          ${Object.entries(AFTER).map(([name, words]) => html`
            <option value=${name} selected=${name === order.at_timeout}>then ${words}</option>`)}
        </select>
        <button class="button">Hold</button>
        <button type="button" class="button" hidden=${!order.filter} onclick=${(event) => this.stop(event)}>
          Hold no more
        </button>
      </form>
      <p id="order-problem" class="problem" role="alert" hidden=${!problem}>${problem}</p>`;
  }

  stop(event) {
    event.target.form.elements.filter.value = "";
    event.target.form.requestSubmit();
  }

  async submit(event) {
    event.preventDefault();
    const { filter, on, seconds, at_timeout: then } = event.target.elements;
    try {
      const order = { filter: filter.value.trim(), on: MOMENTS[on.value], at_timeout: then.value };
      await this.props.onOrder({ ...order, seconds: Number(seconds.value) });
      this.setState({ problem: "" });
    } catch (problem) {
      this.setState({ problem: /** @type {Error} */ (problem).message });
    }
  }
}

/** One held exchange. `onDecide(key, verdict)` raises Problem. Keys: a, r and e, where nothing is typed. */
class Card extends Widget {
  box = createRef();
  form = createRef();
  json = createRef();
  reason = createRef();

  constructor(props) {
    super(props);
    const { message, schema } = props.held;
    // What is edited; the arguments have a form if their schema has fields.
    this.member = ["error", "result", "params"].find((name) => message[name] !== undefined) ?? "params";
    this.hasForm = this.member === "params" && Object.keys(schema?.properties ?? {}).length > 0;
    /** @type {any} */
    this.state = { asJson: !this.hasForm, isAnswer: false, problem: "" };
  }

  render({ held }, { asJson, isAnswer, problem }) {
    const { key, by, reason, message, seconds, row, at_timeout: then, schema, replica } = held;
    const { upstream, principal, method, params, on } = message;
    const shown = isAnswer ? ANSWER : message[this.member];
    const id = `held-${key}`;
    const act = (words, action, title) => html`
      <button type="button" class="button" title=${title} onclick=${() => action.call(this)}>${words}</button>`;
    return html`
      <article class="card held" id=${id} ref=${this.box} tabindex="0" aria-labelledby="${id}-title"
        onkeydown=${(event) => this.key(event)}>
        <header><h2 id="${id}-title">${method} ${params.name ?? params.uri ?? ""}</h2>
          <span class="chip">${on}</span></header>
        <p>${`${Math.ceil(seconds)} s left, then ${AFTER[then]}`}</p>
        ${facts([
          ["Held by", by], reason && ["Why", reason], upstream && ["Upstream", upstream],
          ["Client", principal ?? "no name"], replica && ["Replica", replica],
        ])}
        ${asJson || isAnswer ? html`
          <label key=${isAnswer ? "answer" : "json"} class="field">
            ${isAnswer ? "Answer in its place" : this.member}, as JSON
            <textarea ref=${this.json} rows="6" class="json" spellcheck="false"
              defaultValue=${JSON.stringify(shown, null, 2)} /></label>` : html`
          <${Form} id=${id} ref=${this.form} schema=${schema} values=${params.arguments ?? {}} />`}
        <p class="wrong" role="alert">${problem}</p>
        <div class="actions" role="group" aria-label="Decide about ${method}">
          ${act(isAnswer ? "Answer" : "Let it go", this.release, "Key a")}
          ${this.hasForm && !isAnswer
            && act(asJson ? "As a form" : "As JSON", () => this.setState({ asJson: !asJson }))}
          ${on === "request" && act(isAnswer ? "No answer" : "Answer it …",
            () => this.setState({ isAnswer: !isAnswer }), "Give an answer in the place of the server")}
          ${row && act("Show it", () => this.props.onExchange(row))}
        </div>
        <form class="actions" onsubmit=${(event) => { event.preventDefault(); this.refuse(); }}>
          <input ref=${this.reason} aria-label="Reason" placeholder="Reason" autocomplete="off" />
          <button class="button" title="Key r">Refuse</button>
        </form>
      </article>`;
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.target.closest("input, select, textarea, button")) return;
    const act = {
      a: () => this.release(), r: () => this.reason.current.focus(),
      e: () => this.box.current.querySelector("textarea, input")?.focus(),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  /** Return what is typed; null when it is wrong, with the reason shown. */
  typed() {
    const { message, schema } = this.props.held;
    if (!this.state.asJson && !this.state.isAnswer) {
      const values = this.form.current.read();
      if (values === null) return null;
      const all = Object.entries(message.params.arguments ?? {});
      const rest = Object.fromEntries(all.filter(([name]) => !Object.hasOwn(schema.properties, name)));
      return { ...message.params, arguments: { ...rest, ...values } };
    }
    const value = readJson(this.json.current.value);
    if (!isObject(value)) throw new Error('This must be an object, such as {"a": 1}.');
    return value;
  }

  async release() {
    await this.decide(() => {
      const value = this.typed();
      if (value === null) return null;
      const { isAnswer } = this.state;
      const before = this.props.held.message[this.member];
      const isSame = !isAnswer && JSON.stringify(sorted(value)) === JSON.stringify(sorted(before));
      return isSame ? { verdict: "pass" } : { verdict: "change", [isAnswer ? "result" : this.member]: value };
    });
  }

  async refuse() {
    await this.decide(() => ({ verdict: "refuse", reason: this.reason.current.value.trim() }));
  }

  async decide(verdictOf) {
    try {
      const verdict = verdictOf();
      if (verdict) await this.props.onDecide(this.props.held.key, verdict);
    } catch (problem) {
      this.setState({ problem: /** @type {Error} */ (problem).message });
    }
  }
}

/** Return a value whose objects have their members in order: a form may have changed it. */
function sorted(value) {
  if (Array.isArray(value)) return value.map(sorted);
  if (!isObject(value)) return value;
  return Object.fromEntries(Object.keys(value).sort().map((name) => [name, sorted(value[name])]));
}

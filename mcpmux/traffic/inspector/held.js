// Exchanges that wait for a person, who lets them go, changes, refuses or answers them; and which ones are to wait.

import { get } from "./api.js";
import { isEqual } from "./compare.js";
import * as format from "./format.js";
import { Form } from "./form.js";
import { actByKey, button, createRef, facts, html, options, Polled, Widget } from "./html.js";

const MOMENTS = { request: ["request"], result: ["result"], both: ["request", "result"] };
const AFTER = { pass: "it goes on", refuse: "it is refused" };
const ANSWER = { content: [{ type: "text", text: "" }] };

/** `admin`: see api.js. `onExchange(row)`: show it in the list. */
export class Held extends Polled {
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
  state = { problem: null };

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
          ${options(Object.keys(MOMENTS).map((name) => [name, name]), moment)}
        </select>
        <label>for <input name="seconds" size="4" inputmode="numeric" defaultValue=${order.seconds} /> s</label>
        <select name="at_timeout" aria-label="Then">
          ${options(Object.entries(AFTER).map(([name, words]) => [name, `then ${words}`]), order.at_timeout)}
        </select>
        <button class="button">Hold</button>
        ${button("Hold no more", (event) => this.stop(event), { hidden: !order.filter })}
      </form>
      <p id="order-problem" class="problem" role="alert" hidden=${!problem}>${problem?.message}</p>`;
  }

  stop(event) {
    event.target.form.elements.filter.value = "";
    event.target.form.requestSubmit();
  }

  async submit(event) {
    event.preventDefault();
    const { filter, on, seconds, at_timeout: then } = event.target.elements;
    await this.attempt(async () => {
      const order = { filter: filter.value.trim(), on: MOMENTS[on.value], at_timeout: then.value };
      await this.props.onOrder({ ...order, seconds: Number(seconds.value) });
      return { problem: null };
    });
  }
}

/** One held exchange. `onDecide(key, verdict)` raises Problem. Keys: a, r and e, where nothing is typed. */
class Card extends Widget {
  box = createRef();
  form = createRef();
  reason = createRef();

  constructor(props) {
    super(props);
    const { message, schema } = props.held;
    // What is edited; the arguments have a form if their schema has fields.
    this.member = ["error", "result", "params"].find((name) => message[name] !== undefined) ?? "params";
    this.hasForm = this.member === "params" && Object.keys(schema?.properties ?? {}).length > 0;
    this.original = this.hasForm ? { arguments: {}, ...message.params } : message[this.member];
    /** @type {any} */
    this.state = { asJson: !this.hasForm, isAnswer: false, problem: null, edited: this.original };
  }

  componentDidMount() {
    this.keep();
  }

  render({ held }, { asJson, isAnswer, problem, edited }) {
    const { key, by, reason, message, seconds, row, at_timeout: then, schema, replica } = held;
    const { upstream, principal, method, params, on } = message;
    const id = `held-${key}`;
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
        <${Form} key=${`${isAnswer} ${asJson}`} id=${id} ref=${this.form} ...${
          isAnswer ? { schema: whole("result", "The answer in its place"), values: { result: ANSWER } }
          : asJson ? { schema: whole(this.member), values: { [this.member]: edited } }
          : { schema, values: edited.arguments ?? {} }} />
        <p class="wrong" role="alert">${problem?.message}</p>
        <div class="actions" role="group" aria-label="Decide about ${method}">
          ${button(isAnswer ? "Answer" : "Let it go", () => this.release(), { title: "Key a" })}
          ${this.hasForm && !isAnswer
            && button(asJson ? "As a form" : "As JSON", () => this.turn({ asJson: !asJson }))}
          ${on === "request" && button(isAnswer ? "No answer" : "Answer it …",
            () => this.turn({ isAnswer: !isAnswer }), { title: "Give an answer in the place of the server" })}
          ${row && button("Show it", () => this.props.onExchange(row))}
        </div>
        <form class="actions" onsubmit=${(event) => { event.preventDefault(); this.refuse(); }}>
          <input ref=${this.reason} aria-label="Reason" placeholder="Reason" autocomplete="off" />
          <button class="button" title="Key r">Refuse</button>
        </form>
      </article>`;
  }

  key(event) {
    if (event.target.closest("input, select, textarea, button")) return;
    actByKey(event, {
      a: () => this.release(), r: () => this.reason.current.focus(),
      e: () => this.box.current.querySelector("textarea, input")?.focus(),
    });
  }

  /** Show other fields. What is typed of the message stays. */
  turn(fields) {
    const edited = (this.state.isAnswer ? null : this.typed(false)) ?? this.state.edited;
    this.setState({ ...fields, edited }, () => this.keep());
  }

  /** Go back to JSON when the form cannot hold the message. */
  keep() {
    const { asJson, isAnswer, edited } = this.state;
    if (!asJson && !isAnswer && !isEqual(this.typed(false), edited)) this.setState({ asJson: true });
  }

  /** Return what is typed; null when it is wrong, with the reason shown. `strict`: see `Form.read`. */
  typed(strict = true) {
    const { schema } = this.props.held;
    const { asJson, isAnswer, edited } = this.state;
    const values = this.form.current.read(strict);
    if (values === null || asJson || isAnswer) return values && values[isAnswer ? "result" : this.member];
    const all = Object.entries(edited.arguments ?? {});
    const rest = Object.fromEntries(all.filter(([name]) => !Object.hasOwn(schema.properties, name)));
    return { ...edited, arguments: { ...rest, ...values } };
  }

  release() {
    const value = this.typed();
    if (value === null) return;
    const { isAnswer } = this.state;
    const isSame = !isAnswer && isEqual(value, this.original);
    this.decide(isSame ? { verdict: "pass" } : { verdict: "change", [isAnswer ? "result" : this.member]: value });
  }

  refuse() {
    this.decide({ verdict: "refuse", reason: this.reason.current.value.trim() });
  }

  decide(verdict) {
    return this.attempt(() => this.props.onDecide(this.props.held.key, verdict));
  }
}

/** Return the schema of an object with one member, which is typed as JSON. */
const whole = (name, title = name) => ({ properties: { [name]: { type: "object", title } }, required: [name] });

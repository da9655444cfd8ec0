// One exchange: its request, its answer, all of its messages on both legs, and when each of them passed.

import { get, viewOf, wholeRecord } from "./api.js";
import { compare } from "./compare.js";
import * as format from "./format.js";
import { button, createRef, facts, html, link, stepByKey, tabs, Widget } from "./html.js";
import { answerOf, counterpart, partsOf } from "./legs.js";
import { payloads } from "./payloads.js";
import { spans, timeline } from "./timeline.js";
import { Toolbar } from "./toolbar.js";
import { tree } from "./tree.js";

const AGAIN_MS = 400; // between two looks at an exchange that goes on
const STEPS = 500; // messages that are listed; a listen may have more
const CLOSE = "Close (Escape)";
const TABS = { request: "Request", answer: "Response", legs: "Both legs", timing: "Timing" };
const FAILED = ["error", "tool_error", "invalid"]; // an exchange that ended so opens at its answer

/**
 * `number`: of the row that is open, null for none; `row`: what the list knows of it now; `own`: it is one of mcpmux's
 * own. `refusal`: why nothing can be shown, in words. For the others see `Toolbar`.
 */
export class Detail extends Widget {
  box = createRef();
  /** @type {any} */
  state = { data: null, problem: null, tab: "request", picked: 0, against: null }; // others are compared with `against`
  wanted = "request"; // the tab that was chosen last

  componentDidMount() {
    new ResizeObserver(() => this.forceUpdate()).observe(this.box.current);
  }

  /** Draw nothing anew for a change of the list alone. */
  shouldComponentUpdate(next, state) {
    return state !== this.state || ["number", "row", "own", "refusal"].some((name) => next[name] !== this.props[name]);
  }

  componentDidUpdate(before) {
    const { number, own, row } = this.props;
    const { data } = this.state;
    if (number !== before.number || own !== before.own) {
      this.load();
    } else if (row && row.row === data?.row.row && row.messages !== data.row.messages && !this.waiting) {
      this.waiting = setTimeout(() => {
        this.waiting = null;
        if (this.props.number === number) this.load();
      }, AGAIN_MS);
    }
  }

  focus() {
    this.box.current.focus({ preventScroll: true });
  }

  async load() {
    const { number, own } = this.props;
    this.loading?.abort();
    if (number === null) return; // it is hidden, and stays as it is
    this.loading = new AbortController();
    const { signal } = this.loading;
    try {
      const data = await get(`/api/exchanges/${number}`, { own }, signal);
      if (!signal.aborted) this.show(data, own);
    } catch (problem) {
      if (!signal.aborted) this.setState({ data: null, problem });
    }
  }

  /** Show an exchange. When it is the one that is shown already, the same message stays picked. */
  show(data, own) {
    const { data: before, picked, tab } = this.state;
    const isSame = before?.row.row === data.row.row && before.own === own;
    const seq = isSame ? before.messages[picked]?.record.seq : undefined;
    const place = Math.max(0, data.messages.findIndex(({ record }) => record.seq === seq));
    const first = FAILED.includes(data.row.status) ? "answer" : this.wanted;
    this.setState({ data: { ...data, own }, problem: null, picked: place, tab: isSame ? tab : first });
  }

  choose(tab) {
    this.wanted = tab;
    this.setState({ tab });
  }

  get width() {
    const style = getComputedStyle(this.box.current);
    const padding = parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
    return Math.max(300, this.box.current.clientWidth - padding);
  }

  render({ number, refusal }, { problem }) {
    const reason = refusal ?? problem?.message;
    return html`
      <article ref=${this.box} id="detail" class="detail" aria-label="Exchange" tabindex="-1"
        hidden=${number === null && !refusal}>
        ${reason ? html`
          ${this.heading("This exchange cannot be shown")}<p class="problem">${reason}</p>` : this.exchange()}
      </article>`;
  }

  heading(title, ...more) {
    return html`
      <header class="heading">
        <div class="title"><h2 translate="no">${title}</h2>${more}</div>
        ${button("×", this.props.onClose, { class: "close", "aria-label": CLOSE, title: CLOSE })}
      </header>`;
  }

  exchange() {
    const { data, tab } = this.state;
    if (!data) return null;
    const { messages, own } = data;
    const row = this.props.row?.row === data.row.row ? this.props.row : data.row;
    const { admin, onMark, onResend } = this.props;
    const against = this.state.against?.own === own ? this.state.against : null; // others have numbers of their own
    const onAgainst = (isChosen) => this.setState({ against: isChosen ? { row, own } : null });
    const words = messages[0]?.record.kind === "request" ? TABS : { request: "Message" };
    const shown = tab in words ? tab : "request";
    return html`
      ${this.heading(row.target ?? row.method ?? "Message", html`
        ${row.target && html`<code translate="no">${row.method}</code>`}
        <span class="chip" data-status=${row.status}>${format.status(row)}</span>`)}
      <${Toolbar} ...${{ row, messages, own, against: against?.row, onAgainst, admin, onMark, onResend }} />
      ${factsOf(data.row)}
      ${tabs("Parts of the exchange", "detail-", words, shown, (name) => this.choose(name))}
      <div id="view-detail-${shown}" role="tabpanel" aria-labelledby="tab-detail-${shown}" tabindex="0"
        data-row=${row.row}>
        ${messages.length > 0 ? this.panel(shown, row, messages)
          : html`<p class="hint">None of its messages is here any more.</p>`}
      </div>`;
  }

  panel(tab, row, messages) {
    const { own } = this.state.data;
    const { picked } = this.state;
    const bodies = (pair) => html`
      <${Bodies} key=${[own, row.row, ...pair.map(({ record }) => record.seq)].join(" ")} messages=${pair} row=${row}
        own=${own} />`;
    const pick = (index) => this.setState({ picked: index, tab: "legs" });
    if (tab === "timing") {
      return html`${timeline(messages, picked, pick, this.width)}${spans(messages, pick)}`;
    }
    if (tab === "legs") {
      const parts = partsOf(messages, picked);
      return html`
        <${Steps} key=${`${own} ${row.row}`} messages=${messages} picked=${picked} onPick=${pick} />
        ${(parts.length ? parts : [pairOf(messages, picked)]).map(bodies)}`;
    }
    const message = tab === "answer" ? answerOf(messages) : messages[0];
    return message ? bodies([message])
      : html`<p class="hint">${row.status === "open" ? "There is no answer yet." : "There was no answer."}</p>`;
  }
}

function factsOf(row) {
  const { name, narrowing } = viewOf(row);
  return facts([
    ["When", format.moment(row.at, format.time)],
    row.status !== "note" && ["Took", format.duration(row.ms) || "no answer"],
    row.exchange && ["Exchange", String(row.exchange)],
    row.leg === "client" ? ["Client", row.client ? `${row.client} (${row.peer})` : row.peer] : ["Session", row.peer],
    row.view && ["View", name || "everything"],
    narrowing && ["Narrowed to", narrowing],
    row.upstreams?.length && ["Upstream", row.upstreams.join(", ")],
    ["Over", [row.transport, row.revision].filter(Boolean).join(", ")],
    ["Messages", row.left_out ? `${row.messages}, of which ${row.left_out} are not here` : String(row.messages)],
    row.http && ["HTTP", String(row.http)],
  ]);
}

const way = ({ direction, peer }) => (direction === "in" ? `${peer} → mcpmux` : `mcpmux → ${peer}`);

function wordOf({ kind, method, failed, code = "" }) {
  if (kind === "request" || kind === "notification") return method;
  return { result: failed ? "tool error" : "result", error: `error ${code}` }[kind] ?? "invalid";
}

/** The list of messages. */
class Steps extends Widget {
  render({ messages, picked, onPick }) {
    const begin = messages[0]?.at;
    const left = messages.length - STEPS;
    return html`
      <div class="steps" role="listbox" aria-label="Messages" onkeydown=${stepByKey}>
        ${messages.slice(0, STEPS).map(({ at, record }, index) => html`
          <button key=${record.seq} class="step ${record.leg}" role="option" aria-selected=${index === picked}
            tabindex=${index === picked ? 0 : -1} data-step=${index} data-kind=${record.failed ? "error" : record.kind}
            onclick=${() => onPick(index)} onfocus=${() => index !== picked && onPick(index)}>
            <span class="offset">${at > begin ? `+${format.duration(at - begin)}` : "0"}</span>
            <span class="way">${way(record)}</span>
            <span class="what">${wordOf(record)}${record.id !== undefined && html`<small> #${record.id}</small>`}</span>
            <span class="number">${format.size(record.size)}</span>
          </button>`)}
        ${left > 0 && html`<p class="hint">${format.count(left)} more are not listed</p>`}
      </div>`;
  }
}

/** Return a message and its counterpart, if there is one, as they were before and after rewriting. */
function pairOf(messages, picked) {
  const other = counterpart(messages, picked);
  const pair = other === null ? [messages[picked]] : [messages[picked], messages[other]];
  return messages[picked].record.direction === "in" ? pair : pair.reverse();
}

/** One message, or the two of both legs beside each other. */
class Bodies extends Widget {
  constructor(props) {
    super(props);
    const values = props.messages.map(({ record }) => record.message);
    const isPair = values.length === 2 && !values.includes(undefined);
    this.marks = isPair ? compare(values[0], values[1]) : [];
  }

  render({ messages, row, own }) {
    const isPair = messages.length === 2;
    const isChanged = this.marks.some((side) => [...side].some(([path, mark]) => mark !== true && path));
    return html`
      <div class="bodies" data-pair=${isPair}>
        ${messages.map((message, place) => html`
          <${Body} title=${isPair ? ["Before rewriting", "After rewriting"][place] : "Message"}
            marks=${this.marks[place]} ...${{ message, row, own }} />`)}
        ${this.marks.length > 0 && html`
          <p class="hint legend">
            ${isChanged ? html`<span><i class="swatch" />differs between the legs</span>` : "The same on both legs"}
          </p>`}
      </div>`;
  }
}

class Body extends Widget {
  render({ title, message, marks }, { whole, problem }) {
    const { record, gone, cut } = message;
    const { message: value, text = "" } = whole ?? record;
    return html`
      <section key=${Boolean(whole)} class="body">
        <h3>
          ${title}
          <small>
            ${way(record)} · ${format.size(record.size)}${record.redacted > 0 && ` · ${record.redacted} redacted`}
          </small>
        </h3>
        ${gone && html`<p class="hint">It was too large to be kept here; a capture has it.</p>`}
        ${!gone && (value === undefined ? html`<pre translate="no">${text}</pre>`
          : [tree(value, whole ? undefined : marks), payloads(value)])}
        ${cut && !whole && html`
          <p class="hint">
            This is the beginning.${" "}
            ${link(`Load all of it (${format.size(record.size)})`, () => this.load())}
          </p>`}
        ${problem && html`<p class="problem">${problem.message}</p>`}
      </section>`;
  }

  load() {
    const { message, row, own } = this.props;
    return this.attempt(async () => ({ whole: await wholeRecord(row, message, own), problem: null }));
  }
}

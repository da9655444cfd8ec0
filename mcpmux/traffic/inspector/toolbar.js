// What can be done with the exchange that is shown: mark it, write a note, copy it, compare it with another.

import { get, viewOf, wholeRecord } from "./api.js";
import * as copying from "./copying.js";
import * as format from "./format.js";
import { button, createRef, html, table, Widget } from "./html.js";
import { answerOf } from "./legs.js";

const NOTE_LENGTH = 500;
const LENGTH = 400; // characters of a value that differs
const WORDS = { added: " only on the right", removed: " only on the left", moved: " in another order" };
const COPIES = ["command", "cURL", "JSON", "link"];

/**
 * `row`, `messages`: the exchange; `own`: it is one of mcpmux's own. `against`: the row that it is compared with;
 * `onAgainst(isChosen)`: let others be compared with this one. `onMark(row, change)`: set something on a row.
 * `onResend(request)`: let the request, with its view, be sent again. `admin`: see api.js.
 */
export class Toolbar extends Widget {
  star = createRef();
  /** @type {any} */
  state = { copied: null }; // what was copied last, and of which row

  render({ row, messages, own, against, onAgainst, onMark }, { copied }) {
    const { words, text, round } = copied?.row === row.row && copied.own === own ? copied : {};
    return html`
      <div class="tools">
        ${button(row.marked ? "★ Marked" : "☆ Mark", () => onMark(row, { marked: !row.marked }),
          { ref: this.star, "aria-keyshortcuts": "m", "aria-pressed": Boolean(row.marked) })}
        ${button("Resend …", () => this.resend())}
        <details class="menu" onclick=${(event) => this.leave(event)} onkeydown=${(event) => this.leave(event)}>
          <summary class="button">More</summary>
          <div class="choices">
            ${COPIES.map((word) => button(`Copy as ${word}`, () => this.copy(word)))}
            ${button(against ? "Stop comparing" : "Compare with …", () => onAgainst(!against))}
          </div>
        </details>
        <${Note} key=${`${own} ${row.row}`} text=${row.note ?? ""} onChange=${(note) => onMark(row, { note })}
          onLeave=${() => this.star.current.focus()} />
        <div class="copied" role="status">
          ${words && html`<p key=${`words ${round}`} class="hint">${words}</p>`}
          ${text && html`<pre key=${`text ${round}`} tabindex="0" translate="no">${text}</pre>`}
        </div>
        <div class="comparison" role="status">
          ${against && (against.row === row.row
            ? html`<p class="hint">Open another exchange: it is compared with this one.</p>`
            : html`<${Difference} key=${`${against.row} ${row.row} ${messages.length}`} left=${against} right=${row}
                own=${own} />`)}
        </div>
      </div>`;
  }

  /** Close the menu when something in it was chosen, or with Escape. */
  leave(event) {
    const menu = event.currentTarget;
    if (event.type === "keydown" ? event.key !== "Escape" || !menu.open : event.target.closest("summary")) return;
    event.stopPropagation();
    menu.open = false;
    menu.firstElementChild.focus();
  }

  async copy(word) {
    let words = "Copied.";
    let text = "";
    try {
      text = await this.textOf(word);
      const redacted = word !== "link" && this.props.messages[0].record.redacted;
      if (redacted) words = `Copied. Fill in what is redacted in the request (${redacted}).`;
      await navigator.clipboard.writeText(text);
    } catch (problem) {
      const { message } = /** @type {Error} */ (problem);
      words = text ? "Select the text to copy it: the browser lets no page do it here." : message;
    }
    this.report(words, text);
  }

  report(words, text = "") {
    const { row, own } = this.props;
    this.setState(({ copied }) => ({ copied: { row: row.row, own, words, text, round: (copied?.round ?? 0) + 1 } }));
  }

  /** Return an exchange as text. Throws what cannot be copied, in words. */
  async textOf(word) {
    if (word === "link") return location.href;
    const { row, messages, admin } = this.props;
    const request = await this.request();
    if (word === "JSON") {
      const answer = answerOf(messages);
      return copying.json(request, answer && (await this.whole(answer)));
    }
    this.checkClient();
    const { endpoint } = await admin.control();
    if (!endpoint) throw new Error("mcpmux does not listen for HTTP.");
    const text = (word === "cURL" ? copying.http : copying.command)(row, request, endpoint);
    if (text === null) throw new Error(`No command sends ${row.method}; copy it as cURL.`);
    return text;
  }

  checkClient() {
    if (this.props.row.leg !== "client") throw new Error("No client has sent this.");
  }

  request() {
    const [first] = this.props.messages;
    if (first?.record.kind !== "request") throw new Error("There is no request in it.");
    return this.whole(first);
  }

  async whole(message) {
    const { row, own } = this.props;
    const { message: value } = await wholeRecord(row, message, own);
    if (value === undefined) throw new Error("It was too large to be kept here; a capture has it.");
    return value;
  }

  /** Open the request to be sent again, as it was or changed. The new exchange is compared with this one. */
  async resend() {
    const { row, onAgainst, onResend } = this.props;
    try {
      this.checkClient();
      const request = await this.request();
      onAgainst(true);
      onResend({ ...request, view: viewOf(row).name });
    } catch (problem) {
      this.report(/** @type {Error} */ (problem).message);
    }
  }
}

/** The note on an exchange. What is being typed stays when the row changes, and is kept when it is left. */
class Note extends Widget {
  /** @type {any} */
  state = { typed: null };

  componentWillUnmount() {
    this.save();
  }

  render({ text, onLeave }, { typed }) {
    const leave = (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.setState({ typed: null }, onLeave);
    };
    return html`
      <input class="note" type="text" maxlength=${NOTE_LENGTH} placeholder="Note" aria-label="Note"
        value=${typed ?? text} oninput=${(event) => this.setState({ typed: event.target.value })}
        onchange=${() => this.save()} onkeydown=${leave} />`;
  }

  async save() {
    const { typed } = this.state;
    if (typed === null) return;
    this.state.typed = null; // before `change` comes once more, as the focus goes
    await this.props.onChange(typed.trim());
    this.setState({});
  }
}

/** The differences of two rows, asked for once: `left`, `right`, and whether they are mcpmux's `own`. */
class Difference extends Widget {
  componentDidMount() {
    const { left, right, own } = this.props;
    this.attempt(async () => ({ found: await get(`/api/exchanges/${left.row}/differences/${right.row}`, { own }) }));
  }

  render({ left, right }, { found, problem }) {
    if (problem) return html`<p class="problem">${problem.message}</p>`;
    if (!found) return null;
    return html`
      ${found.differences.length ? table([
        { name: "Path", isHead: true, cell: { translate: "no" }, show: ({ path, kind }) => html`
          ${path}<small>${WORDS[kind]}</small>` },
        { name: nameOf(left), cell: { translate: "no" }, show: ({ captured }) => cut(captured) },
        { name: nameOf(right), cell: { translate: "no" }, show: ({ now }) => cut(now) },
      ], found.differences) : html`<p>They do not differ.</p>`}
      <p class="hint">
        Cursors, ids of tasks and the like differ each time, and are not compared.
        ${found.incomplete && " A message that was too large to be kept is not compared either."}
      </p>`;
  }
}

const nameOf = (row) => `${`${row.method ?? "message"} ${row.target ?? ""}`.trim()}, ${format.time(row.at)}`;

function cut(value) {
  const text = value === undefined ? "" : JSON.stringify(value);
  return text.length > LENGTH ? `${text.slice(0, LENGTH)}…` : text;
}

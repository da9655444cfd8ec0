// What can be done with the exchange that is shown: mark it, write a note, copy it, compare it with another.

import { control, get } from "./api.js";
import * as copying from "./copying.js";
import * as difference from "./difference.js";
import { h, setText } from "./dom.js";

const NOTE_LENGTH = 500;
const COPIES = ["command", "HTTP", "JSON", "link"];

export class Toolbar {
  /** `onMark`: is given a row and what is to be set on it. `onResend`: is given a request and its view. */
  constructor(onMark, onResend) {
    this.onResend = onResend;
    this.against = null; // what others are compared with: {row, own}
    this.star = h("button", { class: "button", "aria-keyshortcuts": "m", onclick: () => onMark(this.row, { marked: !this.row.marked }) });
    this.note = h("input", { class: "note", type: "text", maxlength: NOTE_LENGTH, placeholder: "Note", "aria-label": "Note",
      onchange: () => onMark(this.row, { note: this.note.value.trim() }), onkeydown: (event) => this.leaveNote(event) });
    this.pin = h("button", { class: "button", onclick: () => this.toggle() });
    this.copied = h("div", { class: "copied", role: "status" });
    this.comparison = h("div", { class: "comparison", role: "status" });
    this.element = h("div", { class: "tools" }, this.star, this.note,
      h("span", { class: "copies", role: "group", "aria-label": "Copy as" }, "Copy as",
        COPIES.map((word) => h("button", { class: "button", onclick: () => this.copy(word) }, word))),
      this.pin, h("button", { class: "button", onclick: () => this.resend() }, "Resend …"), this.copied, this.comparison);
  }

  /** `data`: an exchange as it is now; `own`: it is one of mcpmux's own. */
  show(data, own) {
    if (this.row?.row !== data.row.row || this.own !== own) {
      this.copied.replaceChildren();
      this.note.blur();
    }
    if (this.against && this.against.own !== own) this.against = null; // these have numbers of their own
    Object.assign(this, { messages: data.messages, own });
    this.update(data.row);
    this.compare();
  }

  /** The row has changed. What is being typed stays. */
  update(row) {
    this.row = row;
    setText(this.star, row.marked ? "★ Marked" : "☆ Mark");
    this.star.setAttribute("aria-pressed", String(Boolean(row.marked)));
    if (document.activeElement !== this.note) this.note.value = row.note ?? "";
  }

  leaveNote(event) {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    this.note.value = this.row.note ?? "";
    this.star.focus();
  }

  async copy(word) {
    let said = "Copied.";
    let text = "";
    try {
      text = await this.textOf(word);
      const redacted = word !== "link" && this.messages[0].record.redacted;
      if (redacted) said = `Copied. Fill in what is redacted in the request (${redacted}).`;
      await navigator.clipboard.writeText(text);
    } catch (problem) {
      said = text ? "Select the text to copy it: the browser lets no page do it here." : problem.message;
    }
    this.say(said, text ? h("pre", { tabindex: 0, translate: "no" }, text) : "");
  }

  say(words, ...more) {
    this.copied.replaceChildren(h("p", { class: "hint" }, words), ...more);
  }

  /** Throws what cannot be copied, in words. */
  async textOf(word) {
    if (word === "link") return location.href;
    const request = await this.request();
    if (word === "JSON") return copying.json(request, await this.answer());
    this.checkClient();
    const { endpoint } = await control();
    if (!endpoint) throw new Error("mcpmux does not listen for HTTP.");
    const text = (word === "HTTP" ? copying.http : copying.command)(this.row, request, endpoint);
    if (text === null) throw new Error(`No command sends ${this.row.method}; copy it as HTTP.`);
    return text;
  }

  checkClient() {
    if (this.row.leg !== "client") throw new Error("No client has sent this.");
  }

  request() {
    const [first] = this.messages;
    if (first?.record.kind !== "request") throw new Error("There is no request in it.");
    return this.whole(first);
  }

  /** Undefined while there is none. */
  answer() {
    const [{ record: asked }] = this.messages;
    const found = this.messages.find(({ record }) => record.answers === asked.seq);
    return found && this.whole(found);
  }

  async whole(message) {
    const { record } = message.cut ? await get(`/api/exchanges/${this.row.row}/${message.record.seq}`, { own: this.own }) : message;
    if (record.message === undefined) throw new Error("It was too large to be kept here; a capture has it.");
    return record.message;
  }

  /** Opens the request to be sent again, as it was or changed. The new exchange is compared with this one. */
  async resend() {
    try {
      this.checkClient();
      const request = await this.request();
      this.against = { row: this.row, own: this.own };
      this.compare();
      this.onResend({ ...request, view: (this.row.view ?? "").split("?")[0] });
    } catch (problem) {
      this.say(problem.message);
    }
  }

  toggle() {
    this.against = this.against ? null : { row: this.row, own: this.own };
    this.compare();
  }

  /** Shows how this exchange differs from the chosen one. */
  async compare() {
    const { against, row, own } = this;
    setText(this.pin, against ? "Stop comparing" : "Compare with …");
    if (!against || against.row.row === row.row) {
      this.comparison.replaceChildren(against ? h("p", { class: "hint" }, "Open another exchange: it is compared with this one.") : "");
      return;
    }
    let shown;
    try {
      shown = difference.table(against.row, row, await get(`/api/exchanges/${against.row.row}/differences/${row.row}`, { own }));
    } catch (problem) {
      shown = h("p", { class: "problem" }, problem.message);
    }
    if (this.against === against && this.row.row === row.row) this.comparison.replaceChildren(shown);
  }
}

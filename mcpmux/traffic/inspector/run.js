// One request at a time: what is heard while it runs, what its server asks, and its answer.

import { shown } from "./answer.js";
import { call, Problem } from "./api.js";
import { h, setText } from "./dom.js";
import * as format from "./format.js";
import { questions } from "./questions.js";

const LINES = 500; // of what is heard that stay
const LOG_LEVEL = "io.modelcontextprotocol/logLevel";
const TOLD = new Set(["tools/call", "resources/read", "prompts/get"]); // for which progress and log messages are asked

export class Run {
  /** `onState(running)`. `onExchange(row)` and `onRead(uri)`: somebody follows a link. */
  constructor(element, onState, onExchange, onRead) {
    Object.assign(this, { element, onState, onExchange, onRead });
    this.status = h("p", { class: "state", role: "status" });
    this.rows = h("span", { class: "rows-of" });
    this.progress = h("div", { class: "progress" });
    this.log = h("ol", { class: "heard", "aria-label": "Heard while it runs", tabindex: 0, hidden: true });
    this.end = h("div", {});
    element.append(h("div", { class: "outcome" }, this.status, this.rows), this.progress, this.log, this.end);
  }

  cancel() {
    this.running?.abort();
  }

  clear() {
    this.cancel();
    this.running = null;
    setText(this.status, "");
    this.log.hidden = true;
    for (const each of [this.rows, this.progress, this.log, this.end]) each.replaceChildren();
  }

  /** Sends a request, and sends it again with each answer that its server asks for. */
  async start(method, params, view) {
    this.clear();
    const running = this.running = new AbortController();
    this.onState(true);
    setText(this.status, "Running …");
    const told = TOLD.has(method) ? { ...params, _meta: { progressToken: 0, [LOG_LEVEL]: "debug", ...params._meta } } : params;
    try {
      const answer = await this.rounds(method, told, view, running.signal);
      if (this.running !== running) return;
      setText(this.status, answer ? "Answered" : "No answer was given. The server gives up by itself.");
      if (answer) this.end.replaceChildren(shown(answer, this.onRead));
    } catch (problem) {
      if (this.running !== running) return;
      setText(this.status, problem.name === "AbortError" ? "Cancelled" : "Not sent, or lost");
      if (problem.name !== "AbortError") this.end.replaceChildren(h("p", { class: "trouble" }, problem.message));
      if (problem.name !== "AbortError" && !(problem instanceof Problem)) throw problem;
    } finally {
      if (this.running === running) {
        this.running = null;
        this.progress.replaceChildren();
        this.onState(false);
      }
    }
  }

  async rounds(method, params, view, signal) {
    let asked = params;
    for (;;) {
      const answer = await call({ method, params: asked, view }, signal, (event, data) => this.hear(event, data));
      if (answer.result?.resultType !== "input_required") return answer;
      const responses = await this.ask(answer.result.inputRequests, signal);
      if (responses === null) return null;
      const { requestState } = answer.result;
      asked = { ...params, inputResponses: responses, ...(requestState === undefined ? {} : { requestState }) };
    }
  }

  ask(requests, signal) {
    setText(this.status, "The server asks something");
    return new Promise((resolve, reject) => {
      const form = questions(requests, (responses) => {
        this.end.replaceChildren();
        setText(this.status, "Running …");
        resolve(responses);
      });
      signal.addEventListener("abort", () => {
        form.remove();
        reject(signal.reason);
      });
      this.end.replaceChildren(form);
      form.focus();
    });
  }

  hear(event, { row, method, params }) {
    if (event === "begun") {
      if (row !== null) this.rows.append(h("button", { type: "button", class: "more", "data-row": row, onclick: () => this.onExchange(row) }, `Exchange ${row}, both legs`), " ");
    } else if (method === "notifications/progress") {
      const { progress, total, message } = params;
      const words = `${message ? `${message} · ` : ""}${progress}${total === undefined ? "" : ` of ${total}`}`;
      this.progress.replaceChildren(h("progress", { "aria-label": "Progress", max: total, value: total === undefined ? null : progress }), h("span", {}, words));
    } else {
      this.tell(method, params);
    }
  }

  tell(method, params) {
    const isLog = method === "notifications/message";
    const data = isLog ? params.data : params;
    const words = typeof data === "string" ? data : JSON.stringify(data);
    if (this.log.childElementCount >= LINES) this.log.firstElementChild.remove();
    this.log.append(h("li", { "data-level": isLog ? params.level : null }, h("span", { class: "time" }, format.shortTime(Date.now())), " ",
      h("b", {}, isLog ? [params.level, params.logger].filter(Boolean).join(" ") : method.replace("notifications/", "")), " ", h("span", { translate: "no" }, words)));
    this.log.hidden = false;
    this.log.scrollTop = this.log.scrollHeight;
  }
}

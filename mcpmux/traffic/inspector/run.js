// One request at a time: what is heard while it runs, what its server asks, and its answer.

import { answer as shown } from "./answer.js";
import { Problem } from "./api.js";
import * as format from "./format.js";
import { createRef, html, link, Widget } from "./html.js";
import { Questions } from "./questions.js";

const LINES = 500; // of what is heard that stay
const LOG_LEVEL = "io.modelcontextprotocol/logLevel";
const TOLD = new Set(["tools/call", "resources/read", "prompts/get"]); // for which progress and log messages are asked
const EMPTY = { status: "", rows: [], progress: null, heard: [], answer: null, question: null, problem: null };

/**
 * `onState(isRunning)`. `onExchange(row)` and `onRead(uri)`: somebody follows a link. `memory`: see `Questions`.
 * `admin`: see api.js.
 */
export class Run extends Widget {
  log = createRef();
  /** @type {AbortController | null} */
  running = null;
  /** @type {any} */
  state = EMPTY;

  render({ memory, onExchange, onRead }, { status, rows, progress, heard, answer, question, problem }) {
    return html`
      <div>
        <div class="outcome">
          <p class="state" role="status">${status}</p>
          <span class="rows-of">
            ${rows.map((row) => html`
              ${link(`Exchange ${row}, both legs`, () => onExchange(row), { "data-row": row })}${" "}`)}
          </span>
        </div>
        <div class="progress">${progress && progressOf(progress)}</div>
        <ol ref=${this.log} class="heard" aria-label="Heard while it runs" tabindex="0" hidden=${heard.length === 0}>
          ${heard.map(line)}
        </ol>
        ${question && html`<${Questions} key=${question.round} memory=${memory} ...${question} />`}
        ${answer && shown(answer, onRead)}
        ${problem && html`<p class="trouble">${problem.message}</p>`}
      </div>`;
  }

  cancel() {
    this.running?.abort();
  }

  clear() {
    this.cancel();
    this.running = null;
    this.setState(EMPTY);
  }

  /** Send a request, and send it again with each answer that its server asks for. */
  async start(method, params, view) {
    this.clear();
    const running = (this.running = new AbortController());
    this.props.onState(true);
    this.setState({ status: "Running …" });
    const asked = { progressToken: 0, [LOG_LEVEL]: "debug", ...params._meta };
    const end = (state) => {
      if (this.running !== running) return;
      this.running = null;
      this.setState({ progress: null, question: null, ...state });
      this.props.onState(false);
    };
    try {
      const answer = await this.rounds(method, TOLD.has(method) ? { ...params, _meta: asked } : params, view, running);
      end({ answer, status: answer ? "Answered" : "No answer was given. The server gives up by itself." });
    } catch (error) {
      const problem = /** @type {Error} */ (error);
      if (problem.name === "AbortError") {
        end({ status: "Cancelled" });
      } else {
        end({ status: "Not sent, or lost", problem });
        if (!(problem instanceof Problem)) throw problem;
      }
    }
  }

  async rounds(method, params, view, running) {
    let asked = params;
    for (let round = 1; ; round++) {
      const hear = (event, data) => this.running === running && this.hear(event, data);
      const answer = await this.props.admin.call({ method, params: asked, view }, running.signal, hear);
      const { resultType, inputRequests, requestState } = answer.result ?? {};
      if (resultType !== "input_required") return answer;
      const inputResponses = await this.ask(inputRequests, round, running.signal);
      if (inputResponses === null) return null;
      asked = { ...params, inputResponses, ...(requestState === undefined ? {} : { requestState }) };
    }
  }

  ask(requests, round, signal) {
    return new Promise((resolve, reject) => {
      const onAnswer = (responses) => {
        this.setState({ status: "Running …", question: null });
        resolve(responses);
      };
      signal.addEventListener("abort", () => reject(signal.reason));
      this.setState({ status: "The server asks something", question: { requests, round, onAnswer } });
    });
  }

  hear(event, { row, method, params }) {
    if (event === "begun") {
      if (row !== null) this.setState(({ rows }) => ({ rows: [...rows, row] }));
    } else if (method === "notifications/progress") {
      this.setState({ progress: params });
    } else {
      const all = ({ heard }) => ({ heard: [...heard, { at: Date.now(), method, params }].slice(-LINES) });
      this.setState(all, () => (this.log.current.scrollTop = this.log.current.scrollHeight));
    }
  }
}

const progressOf = ({ progress, total, message }) => html`
  <progress aria-label="Progress" ...${total === undefined ? {} : { max: total, value: progress }} />
  <span>${message ? `${message} · ` : ""}${progress}${total === undefined ? "" : ` of ${total}`}</span>`;

function line({ at, method, params }) {
  const isLog = method === "notifications/message";
  const data = isLog ? params.data : params;
  const from = isLog ? [params.level, params.logger].filter(Boolean).join(" ") : method.replace("notifications/", "");
  return html`
    <li data-level=${isLog ? params.level : null}>
      <span class="time">${format.shortTime(at)}</span>${" "}<b>${from}</b>${" "}
      <span translate="no">${typeof data === "string" ? data : JSON.stringify(data)}</span>
    </li>`;
}

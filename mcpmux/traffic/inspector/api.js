// Requests to the admin listener. Numbers that JavaScript cannot hold keep their digits.

import { parse } from "./json.js";

/**
 * An exchange, as the list has it.
 * @typedef {{
 *   row: number, exchange?: number, at: number, ms?: number, status: string, code?: number, method?: string,
 *   target?: string, arguments?: string, words?: string,
 *   leg: string, peer: string, client?: string, view?: string, upstreams?: string[],
 *   transport?: string, revision?: string, messages: number, left_out?: number, http?: number, size?: number,
 *   marked?: boolean, note?: string, parts?: [name: string, after: number, ms: number][],
 * }} Row
 */
/**
 * A message of an exchange. `cut`: it is longer; `gone`: it was too large to be kept.
 * @typedef {{
 *   at: number, cut?: boolean, gone?: boolean, record: {
 *     seq: number, leg: string, direction: string, peer: string, kind: string, method?: string, id?: unknown,
 *     answers?: number, failed?: boolean, code?: number, size: number, redacted?: number, message?: any, text?: string,
 *   },
 * }} Message
 */

/** Why a request has failed, in words, with the status of its answer; 0: there was none. */
export class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/**
 * Return the answer of the admin listener. Raises Problem, or what `signal` was aborted with.
 * @param {RequestInit} options
 */
async function request(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Problem(0, "mcpmux does not answer. Is it still running?");
  }
  if (response.ok) return response;
  const text = await response.text();
  let message = text.trim();
  try {
    const { error, problems = [] } = JSON.parse(text);
    message = [error, ...problems].filter(Boolean).join("; ") || message;
  } catch {
    // it was words
  }
  throw new Problem(response.status, message);
}

/**
 * Return what a path of the API has.
 * @param {AbortSignal} [signal]
 */
export async function get(path, parameters = {}, signal) {
  const query = new URLSearchParams(parameters).toString();
  const headers = { Accept: "application/json" };
  const response = await request(query ? `${path}?${query}` : path, { signal, headers });
  return parse(await response.text());
}

/**
 * Return the record of a message of a row, uncut.
 * @param {Pick<Row, "row">} row
 * @param {Message} message
 * @param {boolean} own
 */
export async function wholeRecord(row, message, own) {
  const { cut, record } = message;
  return cut ? (await get(`/api/exchanges/${row.row}/${record.seq}`, { own })).record : record;
}

/**
 * Return the name of the view of a row's client, and what that narrows it to.
 * @param {Pick<Row, "view">} row
 */
export function viewOf({ view = "" }) {
  const [name, ...narrowing] = view.split("?");
  return { name, narrowing: narrowing.join("?") };
}

/** @type {Record<string, string>} the member with the items in the answer to a list method */
export const LISTS = {
  "tools/list": "tools", "prompts/list": "prompts", "resources/list": "resources",
  "resources/templates/list": "resourceTemplates",
};

/** What changes mcpmux or asks upstreams, which needs a key of this run besides the cookie. */
export class Admin {
  /** @type {any} */
  known = null;

  /** Return how mcpmux is controlled: its `key`, and the `endpoint` of clients. */
  async control() {
    this.known ??= await get("/api/control");
    // All addresses, of which the one of this page is one.
    const endpoint = this.known.endpoint?.replace(/(?<=\/\/)(0\.0\.0\.0|\[::\])(?=[:/])/, location.hostname);
    return { ...this.known, endpoint };
  }

  /** @param {AbortSignal} [signal] */
  async send(path, body, signal) {
    const { key } = await this.control();
    const headers = { "Content-Type": "application/json", "X-Mcpmux-Key": key };
    try {
      return await request(path, { method: "POST", body: JSON.stringify(body), signal, headers });
    } catch (problem) {
      if (problem instanceof Problem && problem.status === 403) this.known = null; // mcpmux was started again
      throw problem;
    }
  }

  async post(path, body = {}) {
    return parse(await (await this.send(path, body)).text());
  }

  /**
   * Send a request (`method`, `params`, `view`) as a client. `hear(event, data)` gets what comes before the answer.
   * @param {AbortSignal} [signal]
   */
  async call(call, signal, hear = (_event, _data) => {}) {
    const { body } = await this.send("/api/calls", call, signal);
    const reader = /** @type {ReadableStream} */ (body).pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Problem(0, "The connection has ended without an answer.");
      const events = (text + value).split("\n\n");
      text = events.pop() ?? "";
      for (const each of events) {
        const lines = each.split("\n");
        const field = (name) => lines.filter((line) => line.startsWith(name)).map((line) => line.slice(name.length));
        const [event] = field("event: ");
        const data = parse(field("data: ").join("\n"));
        if (event === "answer") return data;
        hear(event, data);
      }
    }
  }
}

/**
 * Open the live list, from `since` messages on. It comes back by itself after a loss; `onState` is given `live`, `lost`
 * or `closed`.
 */
export function openStream(filter, own, since, onRows, onState) {
  const source = new EventSource(`/api/exchanges/stream?${new URLSearchParams({ filter, own, since })}`);
  source.addEventListener("rows", (event) => onRows(JSON.parse(event.data)));
  source.addEventListener("open", () => onState("live"));
  source.addEventListener("error", () => onState(source.readyState === EventSource.CLOSED ? "closed" : "lost"));
  return source;
}

// Requests to the admin listener. Numbers that JavaScript cannot hold keep their digits.

import { parse } from "./json.js";

/**
 * An exchange, as the list has it.
 * @typedef {{
 *   row: number, exchange?: number, at: number, ms?: number, status: string, code?: number, method?: string,
 *   target?: string, leg: string, peer: string, client?: string, view?: string, upstreams?: string[],
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

export class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** @param {AbortSignal} [signal] */
export async function get(path, parameters = {}, signal) {
  const query = new URLSearchParams(parameters).toString();
  let response;
  try {
    response = await fetch(query ? `${path}?${query}` : path, { signal, headers: { Accept: "application/json" } });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, "mcpmux does not answer. Is it still running?");
  }
  const text = await response.text();
  if (response.ok) return parse(text);
  let message = text.trim();
  try {
    message = JSON.parse(text).error ?? message;
  } catch {
    // it was words
  }
  throw new Problem(response.status, message);
}

/** @type {any} */
let known = null; // of this run of mcpmux

/** How it is controlled: the `key` that a change needs besides the cookie, and the `endpoint` of clients. */
export async function control() {
  const told = (known ??= await get("/api/control"));
  // All addresses, of which the one of this page is one.
  const endpoint = told.endpoint?.replace(/(?<=\/\/)(0\.0\.0\.0|\[::\])(?=[:/])/, location.hostname);
  return { ...told, endpoint };
}

/** Something that changes mcpmux, or asks upstreams. Says what is wrong by throwing a Problem. */
/** @param {AbortSignal} [signal] */
async function send(path, body, signal) {
  const { key } = await control();
  let response;
  try {
    response = await fetch(path, { method: "POST", body: JSON.stringify(body), signal, headers: { "Content-Type": "application/json", "X-Mcpmux-Key": key } });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, "mcpmux does not answer. Is it still running?");
  }
  if (response.ok) return response;
  if (response.status === 403) known = null; // mcpmux was started again
  const text = await response.text();
  let message = text.trim();
  try {
    const { error, problems } = JSON.parse(text);
    message = [error, ...(problems ?? [])].join("; ") || message;
  } catch {
    // it was words
  }
  throw new Problem(response.status, message);
}

export const post = async (path, body = {}) => parse(await (await send(path, body)).text());

/** Sends a request (`method`, `params`, `view`) as a client. `hear` gets what comes before the answer: event, data. */
export async function call(request, signal, hear = (_event, _data) => {}) {
  const response = await send("/api/calls", request, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Problem(0, "The connection has ended without an answer.");
    const events = (text + value).split("\n\n");
    text = events.pop() ?? "";
    for (const each of events) {
      const lines = each.split("\n");
      const [event] = lines.filter((line) => line.startsWith("event: ")).map((line) => line.slice(7));
      const data = parse(lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n"));
      if (event === "answer") return data;
      hear(event, data);
    }
  }
}

/** The live list. It comes back by itself after a loss; `onState` is told `live`, `lost` or `closed`. */
export class Stream {
  /** `since`: `messages` of the list that it goes on from. */
  constructor(filter, own, since, onRows, onState) {
    this.source = new EventSource(`/api/exchanges/stream?${new URLSearchParams({ filter, own, since })}`);
    this.source.addEventListener("rows", (event) => onRows(JSON.parse(event.data)));
    this.source.addEventListener("open", () => onState("live"));
    this.source.addEventListener("error", () => {
      onState(this.source.readyState === EventSource.CLOSED ? "closed" : "lost");
    });
  }

  close() {
    this.source.close();
  }
}

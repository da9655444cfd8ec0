// Requests to the admin listener. Numbers that JavaScript cannot hold keep their digits.

const EVERY_MS = 2000;

export class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** A number whose digits would be lost. */
export class Exact {
  constructor(source) {
    this.source = source;
  }
}

export function parse(text) {
  if (!/\d{16}/.test(text)) return JSON.parse(text); // which is several times as fast
  return JSON.parse(text, (_key, value, context) => {
    if (typeof value !== "number" || Number.isSafeInteger(value)) return value;
    const source = context?.source;
    return source !== undefined && String(value) !== source && !/[.eE]/.test(source) ? new Exact(source) : value;
  });
}

export async function get(path, parameters, signal) {
  const query = new URLSearchParams(parameters ?? {}).toString();
  let response;
  try {
    response = await fetch(query ? `${path}?${query}` : path, { signal, headers: { Accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
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

let key = null; // what a change needs besides the cookie

/** Something that changes mcpmux. Says what is wrong by throwing a Problem. */
export async function post(path) {
  key ??= (await get("/api/control")).key;
  let response;
  try {
    response = await fetch(path, { method: "POST", body: "{}", headers: { "Content-Type": "application/json", "X-Mcpmux-Key": key } });
  } catch {
    throw new Problem(0, "mcpmux does not answer. Is it still running?");
  }
  const text = await response.text();
  if (response.ok) return parse(text);
  if (response.status === 403) key = null; // mcpmux was started again
  let message = text.trim();
  try {
    const { error, problems } = JSON.parse(text);
    message = [error, ...(problems ?? [])].join("; ") || message;
  } catch {
    // it was words
  }
  throw new Problem(response.status, message);
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

/** A page that loads anew every two seconds while it is shown. */
export class Polled {
  start() {
    this.stop();
    this.load();
    this.timer = setInterval(() => this.load(), EVERY_MS);
  }

  stop() {
    clearInterval(this.timer);
  }
}

// Numbers and times as people read them.

const SECOND = /** @type {const} */ ({ hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const clock = new Intl.DateTimeFormat(undefined, { ...SECOND, fractionalSecondDigits: 3 });
const seconds = new Intl.DateTimeFormat(undefined, SECOND);
const whole = new Intl.NumberFormat(undefined);

export const time = (at) => clock.format(at);
export const shortTime = (at) => seconds.format(at);
export const date = (at) => new Date(at).toISOString();
export const count = (number) => whole.format(number);

/** @param {number | null} [ms] */
export function duration(ms) {
  if (ms === undefined || ms === null) return "";
  if (ms < 1) return `${Math.round(ms * 1000)} µs`;
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

/** @param {number | null} [bytes] */
export function size(bytes) {
  if (bytes === undefined || bytes === null) return "";
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1024 * 1024) return `${(bytes / 1024).toFixed(bytes < 10_240 ? 1 : 0)} KiB`;
  return `${(bytes / 1024 / 1024).toFixed(1)} MiB`;
}

/** @type {Record<string, string>} */
const WORDS = {
  ok: "OK", error: "Error", tool_error: "Tool error", open: "Open", cancelled: "Cancelled", invalid: "Invalid",
  note: "Note",
};

export function status(row) {
  const word = WORDS[row.status] ?? row.status;
  return row.code !== undefined ? `${word} ${row.code}` : word;
}

export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

// Numbers and times as people read them, as `format.py` writes them on a terminal.

const SECOND = /** @type {const} */ ({ hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const exact = new Intl.DateTimeFormat(undefined, { ...SECOND, fractionalSecondDigits: 3 });
const seconds = new Intl.DateTimeFormat(undefined, SECOND);
const whole = new Intl.NumberFormat(undefined);

export const time = (at) => exact.format(at);
export const shortTime = (at) => seconds.format(at);
export const count = (number) => whole.format(number);

/** Return the day and the time, here; `clock`: how exactly. */
export function moment(at, clock = shortTime) {
  const day = new Date(at - 60_000 * new Date(at).getTimezoneOffset()).toISOString().slice(0, 10);
  return `${day} ${clock(at)}`;
}

/** Return three significant digits; whole numbers of more digits stay whole. */
function digits(value) {
  if (value === 0) return "0";
  return value >= 999.5 ? count(Math.round(value)) : value.toPrecision(3);
}

/** @type {[number, string][]} */
const TIMES = [[60_000, "min"], [1000, "s"], [1, "ms"], [0.001, "µs"]];
/** @type {[number, string][]} */
const SIZES = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];

/** @param {[number, string][]} units */
function inUnits(value, units) {
  const [unit, name] = units.find(([each]) => value >= each * 0.9995) ?? units[units.length - 1];
  return `${digits(value / unit)} ${name}`;
}

/** @param {number | null} [ms] */
export const duration = (ms) => (ms === undefined || ms === null ? "" : inUnits(ms, TIMES));

/** @param {number | null} [bytes] */
export function size(bytes) {
  if (bytes === undefined || bytes === null) return "";
  return bytes >= 1023.5 ? inUnits(bytes, SIZES) : `${bytes} B`;
}

export const rate = (perSecond) => `${digits(perSecond)}/s`;

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

// What the end of a half-typed filter may become: a key, a value that was seen under it, an earlier filter.

/** @import { Row } from "./api.js" */
/** @typedef {{name: string, about: string, operator: string, values: string[]}} Key */

const MOST = 8;
const SEARCHED = 2000; // rows
// The last word of a filter, outside of quotation marks.
const LAST = /^(?<before>(?:(?:[^"]|"[^"]*")*\s)?!?)(?<key>[^\s=~<>!"|]*)(?<sign>!?[=~])?(?<value>[^\s"]*)$/s;

/** @type {Record<string, (row: Row) => (string | undefined)[]>} */
const SEEN = {
  method: (row) => [row.method], upstream: (row) => row.upstreams ?? [], uri: (row) => [row.target],
  client: (row) => [row.client], view: (row) => [row.view], peer: (row) => [row.peer],
  transport: (row) => [row.transport], revision: (row) => [row.revision],
};

/**
 * Return the whole filters that a text may become, each with what its last word is about.
 * @param {string} text
 * @param {Key[]} keys
 * @param {Iterable<Row>} rows
 * @param {string[]} recent
 * @returns {{text: string, about: string}[]}
 */
export function suggest(text, keys, rows, recent) {
  if (!text.trim()) return recent.slice(0, MOST).map((each) => ({ text: each, about: "used before" }));
  const found = LAST.exec(text);
  const { before = "", key = "", sign, value = "" } = found?.groups ?? {};
  if (!found || !(key || sign)) return [];
  const make = (words) => words.map(([word, about]) => ({ text: before + word, about })).slice(0, MOST);
  if (sign) return make(valuesOf(key, value, keys, rows).map((each) => [`${key}${sign}${quote(each)}`, ""]));
  const begun = keys.filter(({ name }) => name.startsWith(key.toLowerCase()));
  return make([
    ...begun.map(({ name, operator, about }) => [name + operator, about]),
    ...["uri", "upstream", "client", "method"].flatMap((name) =>
      valuesOf(name, key, keys, rows).map((each) => [`${name}=${quote(each)}`, ""])),
  ]);
}

/** Return a value as a filter reads it. */
export const quote = (value) => (/[\s|*"\\]/.test(value) ? `"${value.replace(/["\\]/g, "\\$&")}"` : value);

function valuesOf(name, part, keys, rows) {
  const values = new Set(keys.find((key) => key.name === name)?.values);
  let left = SEARCHED;
  if (Object.hasOwn(SEEN, name)) {
    for (const row of rows) {
      for (const value of SEEN[name](row)) if (value) values.add(value);
      if (--left <= 0) break;
    }
  }
  const low = part.toLowerCase();
  return [...values].filter((value) => value !== part && value.toLowerCase().includes(low));
}

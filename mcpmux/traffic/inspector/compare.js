// Where two JSON values differ: a mark for each path, `changed` or `only`, and a sign on the way to each of them.

import { Exact, isContainer } from "./json.js";

/** @typedef {Map<string, string | true>} Marks of one value, by path; true: a mark is somewhere below */

const LIMIT = 50_000; // values that are compared; beyond that nothing is marked

export const below = (path, name) => `${path}/${String(name).replaceAll("~", "~0").replaceAll("/", "~1")}`;

/** The key of Marks that says whether something is marked below a path. */
export const inside = (path) => `${path}\u0000`;

/**
 * Mark both values where they differ.
 * @returns {[Marks, Marks]}
 */
export function compare(left, right, limit = LIMIT) {
  /** @type {[Marks, Marks]} */
  const marks = [new Map(), new Map()];
  walk(left, right, "", marks, { left: limit }, []);
  return marks;
}

/** Return whether two values are the same, in any order of members. */
export const isEqual = (left, right) => compare(left, right, Infinity).every(({ size }) => size === 0);

function walk(left, right, path, marks, budget, above) {
  if (budget.left-- <= 0) return;
  if (isContainer(left) && isContainer(right) && Array.isArray(left) === Array.isArray(right)) {
    const way = [...above, path];
    for (const name of new Set([...Object.keys(left), ...Object.keys(right)])) {
      const next = below(path, name);
      if (!Object.hasOwn(right, name)) mark(marks[0], next, "only", way);
      else if (!Object.hasOwn(left, name)) mark(marks[1], next, "only", way);
      else walk(left[name], right[name], next, marks, budget, way);
    }
  } else if (!isSame(left, right)) {
    for (const side of marks) mark(side, path, "changed", above);
  }
}

function mark(side, path, word, above) {
  side.set(path, word);
  for (const each of above) side.set(inside(each), true);
}

const isSame = (left, right) =>
  left === right || (left instanceof Exact && right instanceof Exact && left.source === right.source);

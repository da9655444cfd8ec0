// JSON whose numbers keep their digits, and what a value is.

const precise = /** @type {any} */ (JSON); // its types know no sources of numbers yet

/** A number whose digits would be lost in a number of JavaScript. */
export class Exact {
  /** @param {string} source */
  constructor(source) {
    this.source = source;
  }

  toJSON() {
    return precise.rawJSON(this.source);
  }
}

/** @param {string} text */
export function parse(text) {
  if (!/\d{16}/.test(text)) return JSON.parse(text); // which is several times as fast
  return precise.parse(text, (_key, value, context) => {
    if (typeof value !== "number" || Number.isSafeInteger(value)) return value;
    const source = context?.source;
    return source !== undefined && String(value) !== source && !/[.eE]/.test(source) ? new Exact(source) : value;
  });
}

/** @returns {value is object} */
export const isContainer = (value) => value !== null && typeof value === "object" && !(value instanceof Exact);

/** @returns {value is Record<string, any>} */
export const isObject = (value) => isContainer(value) && !Array.isArray(value);

// JSON Schema for a form: what kind of field a property gets, and the value of what is typed there.

import { Exact, isObject, parse } from "./json.js";

const DEPTH = 8; // of references that are followed
const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;

/**
 * One property. `choices`: the few values there are, with labels; `several`: any number of them.
 * @typedef {{name: string, required: boolean, schema: any, choices: [string, any][] | null, several: boolean}} Field
 */

/**
 * Return a field for each property of an object.
 * @returns {Field[]}
 */
export function fieldsOf(schema) {
  const required = Array.isArray(schema?.required) ? schema.required : [];
  return Object.entries(schema?.properties ?? {}).map(([name, property]) => {
    const own = plain(property, schema);
    const of = own.type === "array" ? choices(plain(own.items, schema)) : null;
    return {
      name, required: required.includes(name), schema: own, choices: of ?? choices(own), several: of !== null,
    };
  });
}

/** Return the schema without a reference, and without "or null" around it. */
function plain(schema, root, depth = 0) {
  if (!isObject(schema) || depth > DEPTH) return {};
  const { $ref: reference, ...own } = schema;
  if (typeof reference === "string" && reference.startsWith("#/")) {
    const steps = reference.slice(2).split("/").map((step) => step.replaceAll("~1", "/").replaceAll("~0", "~"));
    return { ...plain(steps.reduce((at, name) => at?.[name], root), root, depth + 1), ...own };
  }
  const some = Array.isArray(own.anyOf) ? own.anyOf.filter((each) => each?.type !== "null") : [];
  if (some.length === 1) return { ...own, anyOf: undefined, ...plain(some[0], root, depth + 1) };
  const types = Array.isArray(own.type) ? own.type.filter((each) => each !== "null") : [own.type];
  return { ...own, type: types.length === 1 ? types[0] : undefined };
}

/** Return the few values that there are, with their labels; null when there are more. */
function choices(schema) {
  if (Array.isArray(schema.enum)) {
    return schema.enum.map((value, index) => [String(schema.enumNames?.[index] ?? worded(value)), value]);
  }
  const named = schema.oneOf ?? schema.anyOf;
  if (Array.isArray(named) && named.length && named.every((each) => isObject(each) && "const" in each)) {
    return named.map((each) => [String(each.title ?? worded(each.const)), each.const]);
  }
  if ("const" in schema) return [[worded(schema.const), schema.const]];
  return schema.type === "boolean" ? [["true", true], ["false", false]] : null;
}

const worded = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** Return what is typed into a field, in a word or two. */
export function kindOf({ schema, choices: few, several }) {
  if (few) return several ? "several" : "";
  const isText = ["string", "number", "integer"].includes(schema.type);
  return isText ? (schema.format ?? schema.type) : [schema.type, "as JSON"].filter(Boolean).join(", ");
}

/** Return the value of a text in a field, undefined for none. Throws what is wrong with it, in words. */
export function readText(type, text) {
  if (type === "string") return text === "" ? undefined : text;
  const source = text.trim();
  if (source === "") return undefined;
  if (type === "number" || type === "integer") return readNumber(type, source);
  let value;
  try {
    value = parse(source);
  } catch (error) {
    throw new Error(`This is not JSON: ${/** @type {Error} */ (error).message}`);
  }
  if (type === "array" && !Array.isArray(value)) throw new Error("This must be an array, such as [1, 2].");
  if (type === "object" && !isObject(value)) throw new Error('This must be an object, such as {"a": 1}.');
  return value;
}

function readNumber(type, source) {
  const value = NUMBER.test(source) ? parse(source) : NaN;
  const isWhole = value instanceof Exact || Number.isInteger(value);
  if (type === "integer" && !isWhole) throw new Error("This must be a whole number.");
  if (!isWhole && !Number.isFinite(value)) throw new Error("This must be a number.");
  return value;
}

// A form out of a JSON Schema, and the values that are in it. What no simple field can hold is typed as JSON.

import { h } from "./dom.js";
import { Exact, isObject, parse } from "./json.js";

const TYPED_MS = 200; // after the last key suggestions are asked for
const DEPTH = 8; // of references that are followed
const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;

let fields = 0; // so far, for ids

/** Fields for the properties of an object. */
export class Form {
  /** `values`: at the beginning; null for the defaults of the schema. `complete(name, value, others)`: suggestions for a text that is typed. */
  constructor(schema, values = null, complete = null) {
    const required = Array.isArray(schema?.required) ? schema.required : [];
    this.complete = complete;
    this.root = schema;
    this.fields = Object.entries(schema?.properties ?? {}).map(([name, each]) => {
      const own = plain(each, schema);
      const value = values === null ? own.default : Object.hasOwn(values, name) ? values[name] : undefined;
      return this.field(name, own, required.includes(name), value ?? undefined);
    });
    this.element = h("div", { class: "fields" }, this.fields.map((each) => each.element));
  }

  /** The values; null when some make no sense, which the fields then say. Not `strict`: those that make sense. */
  read(strict = true) {
    const values = Object.create(null); // a property may be called __proto__
    let wrong = null;
    for (const field of this.fields) {
      let problem = "";
      try {
        const value = field.read(field.input);
        if (value !== undefined) values[field.name] = value;
        else if (field.required) problem = "This is required.";
      } catch (error) {
        problem = error.message;
      }
      field.problem.textContent = problem;
      field.input.setAttribute("aria-invalid", String(problem !== ""));
      if (problem) wrong ??= field.input;
    }
    if (!strict || !wrong) return values;
    wrong.focus();
    return null;
  }

  field(name, schema, required, value) {
    const id = `field-${++fields}`;
    const attributes = { id, "aria-required": required, "aria-describedby": `${id}-about ${id}-problem`, autocomplete: "off", spellcheck: "false" };
    const [input, read, suggestions] = this.input(name, schema, value, required, attributes);
    const problem = h("span", { id: `${id}-problem`, class: "wrong", role: "alert" });
    const about = [schema.description, schema.format && `Format: ${schema.format}.`].filter(Boolean).join(" ");
    const element = h("div", { class: "field" },
      h("label", { for: id }, h("span", { translate: "no" }, schema.title && schema.title !== name ? `${schema.title} (${name})` : name),
        required ? h("span", { class: "wrong", "aria-hidden": true }, " *") : "", h("small", {}, ` ${kind(input, schema)}`)),
      input, suggestions, h("span", { id: `${id}-about`, class: "hint" }, about), problem);
    return { name, required, element, input, read, problem };
  }

  /** The element for a value, what reads it (undefined for none; it throws for what makes no sense), and suggestions. */
  input(name, schema, value, required, attributes) {
    const several = schema.type === "array" ? choices(plain(schema.items, this.root)) : null;
    const few = several ?? choices(schema);
    if (few) {
      const picked = (several ? (Array.isArray(value) ? value : []) : [value]).map((each) => JSON.stringify(each));
      const options = few.map(([label, each], index) => h("option", { value: index, selected: picked.includes(JSON.stringify(each)) }, label));
      const select = h("select", { ...attributes, multiple: several !== null }, several ? "" : h("option", { value: "" }, required ? "Choose" : "Leave out"), options);
      const chosen = () => [...select.selectedOptions].filter((each) => each.value !== "").map((each) => few[Number(each.value)][1]);
      return [select, several ? () => (chosen().length || required ? chosen() : undefined) : () => chosen()[0]];
    }
    if (schema.type === "string" && this.complete) return this.completed(name, value, attributes);
    if (schema.type === "string") {
      const area = h("textarea", { rows: 1, ...attributes });
      area.value = value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value);
      return [area, text];
    }
    if (schema.type === "number" || schema.type === "integer") {
      return [h("input", { ...attributes, inputmode: schema.type === "integer" ? "numeric" : "decimal", value: value === undefined ? null : JSON.stringify(value) }), number(schema.type)];
    }
    const area = h("textarea", { rows: 2, class: "json", ...attributes });
    area.value = value === undefined ? "" : JSON.stringify(value, null, 2);
    return [area, json(schema.type)];
  }

  completed(name, value, attributes) {
    const options = h("datalist", { id: `${attributes.id}-options` });
    const input = h("input", { ...attributes, list: options.id, value: value === undefined ? null : String(value) });
    let typed = 0;
    const suggest = () => {
      clearTimeout(typed);
      typed = setTimeout(async () => {
        const others = Object.fromEntries(this.fields.filter((each) => each.name !== name && each.input.value).map((each) => [each.name, each.input.value]));
        const asked = input.value;
        const found = await this.complete(name, asked, others);
        if (input.value === asked) options.replaceChildren(...found.map((each) => h("option", { value: each })));
      }, TYPED_MS);
    };
    input.addEventListener("input", suggest);
    input.addEventListener("focus", suggest);
    return [input, text, options];
  }
}

const text = (input) => (input.value === "" ? undefined : input.value);

const number = (type) => (input) => {
  const source = input.value.trim();
  if (source === "") return undefined;
  const value = NUMBER.test(source) ? parse(source) : NaN;
  const isWhole = value instanceof Exact || Number.isInteger(value);
  if (!(type === "integer" ? isWhole : isWhole || Number.isFinite(value))) throw new Error(type === "integer" ? "This must be a whole number." : "This must be a number.");
  return value;
};

const json = (type) => (input) => {
  if (input.value.trim() === "") return undefined;
  const value = readJson(input.value);
  if (type === "array" && !Array.isArray(value)) throw new Error("This must be an array, such as [1, 2].");
  if (type === "object" && !isObject(value)) throw new Error('This must be an object, such as {"a": 1}.');
  return value;
};

/** The value of a JSON text. The error that it throws says what is wrong. */
export function readJson(source) {
  try {
    return parse(source);
  } catch (error) {
    throw new Error(`This is not JSON: ${error.message}`);
  }
}

/** The schema without a reference, and without "or null" around it. */
function plain(schema, root, depth = 0) {
  if (!isObject(schema) || depth > DEPTH) return {};
  const { $ref: reference, ...own } = schema;
  if (typeof reference === "string" && reference.startsWith("#/")) {
    const found = reference.slice(2).split("/").reduce((at, name) => at?.[name.replaceAll("~1", "/").replaceAll("~0", "~")], root);
    return { ...plain(found, root, depth + 1), ...own };
  }
  const some = Array.isArray(own.anyOf) ? own.anyOf.filter((each) => each?.type !== "null") : [];
  if (some.length === 1) return { ...own, anyOf: undefined, ...plain(some[0], root, depth + 1) };
  const types = Array.isArray(own.type) ? own.type.filter((each) => each !== "null") : [own.type];
  return { ...own, type: types.length === 1 ? types[0] : undefined };
}

/** The few values that there are, with their labels; null when there are more. */
function choices(schema) {
  if (Array.isArray(schema.enum)) return schema.enum.map((value, index) => [String(schema.enumNames?.[index] ?? worded(value)), value]);
  const named = schema.oneOf ?? schema.anyOf;
  if (Array.isArray(named) && named.length && named.every((each) => isObject(each) && "const" in each)) return named.map((each) => [String(each.title ?? worded(each.const)), each.const]);
  if ("const" in schema) return [[worded(schema.const), schema.const]];
  return schema.type === "boolean" ? [["true", true], ["false", false]] : null;
}

const worded = (value) => (typeof value === "string" ? value : JSON.stringify(value));
/** What is typed into an input, in a word or two. */
function kind(input, schema) {
  if (input.options) return input.multiple ? "several" : "";
  const isText = ["string", "number", "integer"].includes(schema.type);
  return isText ? schema.type : [schema.type, "as JSON"].filter(Boolean).join(", ");
}

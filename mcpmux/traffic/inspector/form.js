// A form out of a JSON Schema, and the values that are in it. What no simple field can hold is typed as JSON.

import { createRef, html, Widget } from "./html.js";
import { fieldsOf, kindOf, readText } from "./schema.js";

const INPUTS = { date: "date", email: "email", uri: "url", text: "text" }; // by the format of a text
const TYPED_MS = 200; // after the last key suggestions are asked for

/**
 * Fields for the properties of an object, which have no memory but their elements. `id`: of this form. `values`: at the
 * beginning; null for the defaults of the schema. `complete(name, value, others)`: suggestions for a text.
 */
export class Form extends Widget {
  box = createRef();
  /** @type {any} */
  state = { problems: {}, suggestions: {} };

  constructor(props) {
    super(props);
    const { schema, values = null } = props;
    this.fields = fieldsOf(schema).map((field) => {
      const own = values && Object.hasOwn(values, field.name) ? values[field.name] : undefined;
      return { ...field, value: (values ? own : field.schema.default) ?? undefined };
    });
  }

  render() {
    const fields = this.fields.map((field, place) => this.field(field, place));
    return html`<div ref=${this.box} class="fields">${fields}</div>`;
  }

  /** Return the values; null when one is wrong, with the reason shown at its field. Not `strict`: return the others. */
  read(strict = true) {
    const values = Object.create(null); // a property may be called __proto__
    const problems = {};
    for (const [place, { name, required }] of this.fields.entries()) {
      try {
        const value = this.valueAt(place);
        if (value !== undefined) values[name] = value;
        else if (required) problems[place] = "This is required.";
      } catch (error) {
        problems[place] = /** @type {Error} */ (error).message;
      }
    }
    this.setState({ problems });
    const [wrong] = Object.keys(problems);
    if (!strict || wrong === undefined) return values;
    this.input(wrong).focus();
    return null;
  }

  /** Show a problem at a field. */
  blame(name, problem) {
    this.setState({ problems: { [this.fields.findIndex((field) => field.name === name)]: problem } });
  }

  input(place) {
    return this.box.current.children[place].querySelector("input, select, textarea");
  }

  valueAt(place) {
    const { choices, several, required, schema } = this.fields[place];
    const input = this.input(place);
    if (!input.validity.valid) throw new Error(input.validationMessage); // in the words of the browser
    if (!choices) return readText(schema.type, input.value);
    const chosen = [...input.selectedOptions].filter(({ value }) => value !== "").map(({ value }) => choices[value][1]);
    if (!several) return chosen[0];
    return chosen.length || required ? chosen : undefined;
  }

  field(field, place) {
    const { name, required, schema } = field;
    const id = `${this.props.id}-${place}`;
    const problem = this.state.problems[place];
    const common = {
      id, "aria-required": required, "aria-describedby": `${id}-about ${id}-problem`, "aria-invalid": Boolean(problem),
      autocomplete: "off", spellcheck: false,
    };
    return html`
      <div class="field">
        <label for=${id}>
          <span translate="no">${schema.title && schema.title !== name ? `${schema.title} (${name})` : name}</span>
          ${required && html`<span class="wrong" aria-hidden="true"> *</span>`}<small> ${kindOf(field)}</small>
        </label>
        ${this.inputFor(field, place, common)}
        <span id="${id}-about" class="hint">${schema.description}</span>
        <span id="${id}-problem" class="wrong" role="alert">${problem}</span>
      </div>`;
  }

  inputFor({ choices, several, required, schema, value }, place, common) {
    const { type } = schema;
    const shown = value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value);
    if (choices) {
      const picked = (several ? (Array.isArray(value) ? value : []) : [value]).map((each) => JSON.stringify(each));
      return html`
        <select ...${common} multiple=${several}>
          ${!several && html`<option value="">${required ? "Choose" : "Leave out"}</option>`}
          ${choices.map(([label, each], index) => html`
            <option value=${index} selected=${picked.includes(JSON.stringify(each))}>${label}</option>`)}
        </select>`;
    }
    if (type === "string" && this.props.complete) {
      const suggest = (event) => this.suggest(place, event.target);
      return html`
        <input ...${common} list="${common.id}-options" defaultValue=${shown} oninput=${suggest} onfocus=${suggest} />
        <datalist id="${common.id}-options">
          ${this.state.suggestions[place]?.map((each) => html`<option value=${each} />`)}
        </datalist>`;
    }
    if (type === "string" && Object.hasOwn(INPUTS, schema.format)) {
      return html`<input ...${common} type=${INPUTS[schema.format]} defaultValue=${shown} />`;
    }
    if (type === "string") return html`<textarea rows="1" ...${common} defaultValue=${shown} />`;
    if (type === "number" || type === "integer") {
      const mode = type === "integer" ? "numeric" : "decimal";
      return html`<input ...${common} inputmode=${mode} defaultValue=${shown} />`;
    }
    const json = value === undefined ? "" : JSON.stringify(value, null, 2);
    return html`<textarea rows="2" class="json" ...${common} defaultValue=${json} />`;
  }

  suggest(place, input) {
    clearTimeout(this.typed);
    this.typed = setTimeout(async () => {
      const asked = input.value;
      const others = this.fields.map(({ name }, index) => [name, this.input(index).value]);
      const known = Object.fromEntries(others.filter(([, value], index) => index !== place && value));
      const found = await this.props.complete(this.fields[place].name, asked, known);
      if (input.value !== asked) return;
      this.setState(({ suggestions }) => ({ suggestions: { ...suggestions, [place]: found } }));
    }, TYPED_MS);
  }
}

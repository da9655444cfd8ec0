// What a server asks the client during a request: elicitation, sampling, roots. A person answers.

import { block, underRole } from "./answer.js";
import { Form } from "./form.js";
import { button, createRef, html, Widget } from "./html.js";
import { tree } from "./tree.js";

const MODEL = "a person with the inspector of mcpmux";
const ACTIONS = ["accept", "decline", "cancel"];
const text = (about) => ({ type: "string", ...about });
const object = (properties, required = []) => ({ properties, required });

/**
 * What may be asked: what a person sees of it, the form of the answer (none: null), and the response with its values.
 * `memory.roots`: as they were given last.
 */
const ASKING = {
  "elicitation/create": {
    title: "The server asks you",
    about: ({ message = "", mode, url }) => html`<p>${String(message)}</p>${mode === "url" && address(url)}`,
    schema: ({ mode, requestedSchema }) => (mode === "url" ? null : requestedSchema),
    response: (content, { mode }) => ({ action: "accept", ...(mode === "url" ? {} : { content }) }),
    actions: ACTIONS,
  },
  "sampling/createMessage": {
    title: "The server asks the model",
    about: ({ messages, systemPrompt, ...rest }) => html`
      ${systemPrompt && underRole("system", html`<pre>${String(systemPrompt)}</pre>`)}
      ${Array.isArray(messages) && messages.map((each) => underRole(each?.role, block(each?.content)))}
      <details><summary>Settings</summary>${tree(rest)}</details>`,
    schema: () => object(
      { text: text({ description: "What the model says" }), model: text({ default: MODEL }) }, ["text", "model"]),
    response: (values) => ({
      role: "assistant", content: { type: "text", text: values.text }, model: values.model, stopReason: "endTurn",
    }),
  },
  "roots/list": {
    title: "The server asks for your roots",
    about: () => null,
    schema: (_params, memory) => object({
      roots: text({
        title: "Roots", description: "One URI a line, such as file:///home/you/project", default: memory.roots,
      }),
    }),
    response: ({ roots = "" }, _params, memory) => {
      memory.roots = roots;
      return { roots: roots.split(/\s+/).filter(Boolean).map((uri) => ({ uri })) };
    },
  },
};
const UNKNOWN = {
  about: tree, schema: () => object({ response: { type: "object", default: {} } }, ["response"]),
  response: ({ response }) => response,
};

const address = (url) => html`
  <p class="address" translate="no">
    ${/^https?:\/\//.test(url)
      ? html`<a href=${url} target="_blank" rel="noopener noreferrer">${url}</a>` : String(url)}
    <span class="hint" translate="yes">
      ${" "}Look at the whole address before you open it. Accept when you have done what it asks.
    </span>
  </p>`;

/** All questions at once. `onAnswer(responses)`: by key; null when no answer is to be given. `memory`: see ASKING. */
export class Questions extends Widget {
  form = createRef();
  /** @type {Record<string, any>} */
  asked = {};

  componentDidMount() {
    this.form.current.focus();
  }

  render({ requests, memory, onAnswer }) {
    const answer = (event) => {
      event.preventDefault();
      const responses = Object.keys(requests ?? {}).map((key) => [key, this.asked[key].current.read()]);
      if (responses.every(([, response]) => response)) onAnswer(Object.fromEntries(responses));
    };
    return html`
      <form ref=${this.form} class="questions" aria-label="The server asks" tabindex="-1" novalidate onsubmit=${answer}>
        ${Object.entries(requests ?? {}).map(([key, { method, params = {} }], place) => html`
          <${Question} ref=${(this.asked[key] ??= createRef())} id="question-${place}"
            asking=${Object.hasOwn(ASKING, method) ? ASKING[method] : UNKNOWN} ...${{ method, params, memory }} />`)}
        <div class="actions">
          <button class="button primary">Send the answer</button>
          ${button("Give no answer", () => onAnswer(null))}
        </div>
      </form>`;
  }
}

class Question extends Widget {
  form = createRef();
  action = "accept";

  render({ id, asking, method, params, memory }) {
    const { title = `The server asks ${method}`, about, schema, actions } = asking;
    const fields = schema(params, memory);
    return html`
      <fieldset>
        <legend>${title}</legend>
        ${about(params)}
        ${fields && html`<${Form} ref=${this.form} id=${id} schema=${fields} />`}
        ${actions && html`
          <div class="choice" role="radiogroup" aria-label="Your answer">
            ${actions.map((action) => html`
              <label>
                <input type="radio" name="action-${id}" value=${action} defaultChecked=${action === "accept"}
                  onchange=${() => (this.action = action)} /> ${action}
              </label>`)}
          </div>`}
      </fieldset>`;
  }

  /** Return the response; null when it is wrong, with the reason shown in the form. */
  read() {
    const { asking, params, memory } = this.props;
    if (this.action !== "accept") return { action: this.action };
    const values = this.form.current ? this.form.current.read() : {};
    return values && asking.response(values, params, memory);
  }
}

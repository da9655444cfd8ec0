// What a server asks the client during a request: elicitation, sampling, roots. A person answers.

import { block } from "./answer.js";
import { h } from "./dom.js";
import { Form } from "./form.js";
import { tree } from "./tree.js";

const MODEL = "a person with the inspector of mcpmux";

let roots = ""; // as they were given last

/** Asks all at once. `onAnswer(responses)`: by key; null when no answer is to be given. */
export function questions(requests, onAnswer) {
  const asked = Object.entries(requests ?? {}).map(([key, { method, params }]) => [key, (Object.hasOwn(ASKING, method) ? ASKING[method] : unknown)(params ?? {}, method)]);
  const answer = (event) => {
    event.preventDefault();
    const responses = asked.map(([key, each]) => [key, each.read()]);
    if (responses.every(([, response]) => response)) onAnswer(Object.fromEntries(responses));
  };
  return h("form", { class: "questions", "aria-label": "The server asks", tabindex: -1, onsubmit: answer },
    asked.map(([, each]) => each.element),
    h("div", { class: "actions" }, h("button", { class: "button primary" }, "Send the answer"),
      h("button", { type: "button", class: "button", onclick: () => onAnswer(null) }, "Give no answer")));
}

function elicitation(params) {
  const isUrl = params.mode === "url";
  const form = isUrl ? null : new Form(params.requestedSchema);
  const name = `action-${crypto.randomUUID()}`;
  const actions = ["accept", "decline", "cancel"].map((action) => h("label", {}, h("input", { type: "radio", name, value: action, checked: action === "accept" }), ` ${action}`));
  const element = card("The server asks you", h("p", {}, String(params.message ?? "")), isUrl ? link(params.url) : form.element,
    h("div", { class: "choice", role: "radiogroup", "aria-label": "Your answer" }, actions));
  const read = () => {
    const action = element.querySelector(`[name="${name}"]:checked`).value;
    if (action !== "accept" || isUrl) return { action };
    const content = form.read();
    return content && { action, content };
  };
  return { element, read };
}

function link(url) {
  const isWeb = /^https?:\/\//.test(url);
  return h("p", { class: "address", translate: "no" }, isWeb ? h("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, url) : String(url),
    h("span", { class: "hint", translate: "yes" }, " Look at the whole address before you open it. Accept when you have done what it asks."));
}

function sampling(params) {
  const { messages, systemPrompt, ...rest } = params;
  const form = new Form({ properties: { text: { type: "string", description: "What the model says" }, model: { type: "string", default: MODEL } }, required: ["text", "model"] });
  const element = card("The server asks the model",
    systemPrompt ? h("div", { class: "said" }, h("h4", {}, "system"), h("pre", {}, String(systemPrompt))) : "",
    (Array.isArray(messages) ? messages : []).map((each) => h("div", { class: "said" }, h("h4", {}, each?.role ?? ""), block(each?.content))),
    h("details", {}, h("summary", {}, "Settings"), tree(rest)), form.element);
  const read = () => {
    const values = form.read();
    return values && { role: "assistant", content: { type: "text", text: values.text }, model: values.model, stopReason: "endTurn" };
  };
  return { element, read };
}

function askRoots() {
  const form = new Form({ properties: { roots: { type: "string", title: "Roots", description: "One URI a line, such as file:///home/you/project" } } }, { roots });
  const read = () => {
    roots = form.read().roots ?? "";
    return { roots: roots.split(/\s+/).filter(Boolean).map((uri) => ({ uri })) };
  };
  return { element: card("The server asks for your roots", form.element), read };
}

function unknown(params, method) {
  const form = new Form({ properties: { response: { type: "object", default: {} } }, required: ["response"] });
  return { element: card(`The server asks ${method}`, tree(params), form.element), read: () => form.read()?.response };
}

const card = (title, ...children) => h("fieldset", {}, h("legend", {}, title), ...children);
const ASKING = { "elicitation/create": elicitation, "sampling/createMessage": sampling, "roots/list": askRoots };

// What a request was answered with, as a person reads it, and as it is.

import * as format from "./format.js";
import { button, html } from "./html.js";
import { payload } from "./payloads.js";
import { tree } from "./tree.js";

/** Return the data of an `answer` event. `onRead(uri)`: somebody follows a link to a resource. */
export function answer({ result, error, ms }, onRead) {
  const parts = error ? [html`<p class="trouble">${error.message}</p>`] : [
    ...list(result.content).map((each) => block(each, onRead)),
    ...list(result.messages).map((each) => underRole(each?.role, block(each?.content, onRead))),
    ...list(result.contents).map(resource),
    result.structuredContent !== undefined && html`
      <div><h4>Structured content</h4>${tree(result.structuredContent)}</div>`,
  ].filter(Boolean);
  const [status, words] = outcome(result, error);
  return html`
    <section class="answer" data-failed=${status !== "ok"}>
      <h3><span class="chip" data-status=${status}>${words}</span> <span class="hint">${format.duration(ms)}</span></h3>
      ${parts}
      <details class="whole" open=${parts.length === 0}>
        <summary>${error ? "The error" : "The result"} as it came</summary>
        ${tree(error ?? result)}
      </details>
    </section>`;
}

function outcome(result, error) {
  if (error) return ["error", `Error ${error.code}`];
  return result.isError === true ? ["tool_error", "Tool error"] : ["ok", "OK"];
}

/** Return content under the role that it comes from. */
export const underRole = (role, content) => html`<div class="said"><h4>${role ?? ""}</h4>${content}</div>`;

/**
 * Return one block of content: of a tool's result, or of a message.
 * @param {(uri: string) => void} [onRead]
 */
export function block(content, onRead) {
  if (Array.isArray(content)) return html`<div>${content.map((each) => block(each, onRead))}</div>`;
  if (content?.type === "text") {
    return html`<div><pre translate="no">${String(content.text)}</pre>${payload(content)}</div>`;
  }
  if (content?.type === "resource") return resource(content.resource);
  if (content?.type === "resource_link" && onRead) {
    const { uri, title, name, description } = content;
    return html`
      <p>
        ${button(`Read ${title ?? name ?? uri}`, () => onRead(uri))}${" "}
        <span class="hint">${description}</span>
      </p>`;
  }
  return (content && payload(content)) ?? tree(content);
}

function resource(content) {
  const { uri, mimeType, text, blob } = content ?? {};
  const about = html`<h4 translate="no">${uri} <small>${mimeType}</small></h4>`;
  const shown = content && payload(content);
  if (typeof text === "string") return html`<div>${about}<pre translate="no">${text}</pre>${shown}</div>`;
  if (typeof blob !== "string") return html`<div>${about}${tree(content ?? null)}</div>`;
  const size = format.size(Math.floor(blob.length * 0.75));
  return html`<div>${about}${shown ?? html`<p class="hint">${mimeType ?? "data"}, ${size}</p>`}</div>`;
}

const list = (value) => (Array.isArray(value) ? value : []);

// What a request was answered with, as a person reads it, and as it is.

import { h } from "./dom.js";
import * as format from "./format.js";
import { payload } from "./payloads.js";
import { tree } from "./tree.js";

/** `answer`: the data of an `answer` event. `onRead(uri)`: somebody follows a link to a resource. */
export function shown(answer, onRead) {
  const { result, error, ms } = answer;
  const failed = error !== undefined || result.isError === true;
  const words = error ? `Error ${error.code}` : result.isError === true ? "Tool error" : "OK";
  const parts = error ? [h("p", { class: "trouble" }, error.message)] : [
    ...list(result.content).map((each) => block(each, onRead)),
    ...list(result.messages).map((each) => h("div", { class: "said" }, h("h4", {}, each?.role ?? ""), block(each?.content, onRead))),
    ...list(result.contents).map((each) => resource(each)),
    result.structuredContent === undefined ? "" : h("div", {}, h("h4", {}, "Structured content"), tree(result.structuredContent)),
  ];
  return h("section", { class: "answer", "data-failed": failed },
    h("h3", {}, h("span", { class: "chip", "data-status": error ? "error" : failed ? "tool_error" : "ok" }, words), " ", h("span", { class: "hint" }, format.duration(ms))),
    parts, h("details", { class: "whole", open: !error && parts.every((each) => !each) }, h("summary", {}, error ? "The error as it came" : "The result as it came"), tree(error ?? result)));
}

/** One block of content: of a tool's result, or of a message. */
export function block(content, onRead) {
  if (Array.isArray(content)) return h("div", {}, content.map((each) => block(each, onRead)));
  if (content?.type === "text") return h("div", {}, h("pre", { translate: "no" }, String(content.text)), payload(content));
  if (content?.type === "resource") return resource(content.resource);
  if (content?.type === "resource_link" && onRead) {
    return h("p", {}, h("button", { type: "button", class: "button", onclick: () => onRead(content.uri) }, `Read ${content.title ?? content.name ?? content.uri}`), " ", h("span", { class: "hint" }, content.description ?? ""));
  }
  return (content && payload(content)) ?? tree(content);
}

function resource(content) {
  const about = h("h4", { translate: "no" }, content?.uri ?? "", " ", h("small", {}, content?.mimeType ?? ""));
  const shown = content && payload(content);
  if (typeof content?.text === "string") return h("div", {}, about, h("pre", { translate: "no" }, content.text), shown);
  if (typeof content?.blob !== "string") return h("div", {}, about, tree(content ?? null));
  return h("div", {}, about, shown ?? h("p", { class: "hint" }, `${content.mimeType ?? "data"}, ${format.size(Math.floor(content.blob.length * 0.75))}`));
}

const list = (value) => (Array.isArray(value) ? value : []);

// What a message carries inside of its JSON, shown as what it is: images, sound, Markdown, pages, JSON as text.
// Nothing of it runs: an image is in <img>, where SVG has no scripts; a page is in a sandbox without any, and the
// policy of this page holds there, too, so that it loads nothing from elsewhere.

import { h } from "./dom.js";
import * as format from "./format.js";
import { parse } from "./json.js";
import { looksLikeMarkdown, markdown } from "./markdown.js";
import { tree } from "./tree.js";

const PAYLOADS = 20; // shown of one message
const VALUES = 20_000; // of a message that are looked at
const TEXT = 200_000; // characters of what is more than text; longer is in the JSON above
// A browser may connect to where a frame or link leads before it asks the policy, so these are shown as text.
const LEADING = /<(?=(?:iframe|frame|frameset|fencedframe|object|embed|link|meta|base)\b)/gi;

/** An element for each payload in a message. */
export function payloads(message) {
  const found = [];
  const queue = [message];
  for (let place = 0; place < queue.length && place < VALUES && found.length < PAYLOADS; place++) {
    const value = queue[place];
    if (value === null || typeof value !== "object") continue;
    const shown = payload(value);
    if (shown) found.push(shown);
    for (const each of Object.values(value)) queue.push(each);
  }
  return found;
}

/** An element for what one block or resource has; null when that is only text or not known. */
export function payload(block) {
  const type = String(block.mimeType ?? "").split(";")[0].trim().toLowerCase();
  const encoded = [block.data, block.blob].find((each) => typeof each === "string");
  const media = /^(image|audio)\/[\w.+-]+$/.exec(type)?.[1];
  if (media && encoded !== undefined) return opened(media, type, encoded.length * 0.75, true, () => MEDIA[media](`data:${type};base64,${encoded}`));
  const text = typeof block.text === "string" ? block.text : encoded !== undefined && isText(type) ? decoded(encoded) : undefined;
  if (text === undefined || text.length > TEXT) return null;
  if (type === "image/svg+xml") return opened("image", type, text.length, true, () => MEDIA.image(url(type, text)));
  if (type === "text/html") return opened("page", type, text.length, false, () => page(text));
  if (type === "text/markdown") return opened("Markdown", type, text.length, true, () => markdown(text));
  const value = json(text);
  if (value !== undefined) return opened("JSON", type, text.length, false, () => tree(value));
  if (looksLikeMarkdown(text)) return opened("Markdown", type, text.length, false, () => markdown(text));
  return null;
}

const MEDIA = {
  image: (src) => h("img", { src, alt: "Image in this message" }),
  audio: (src) => h("audio", { src, controls: true, "aria-label": "Sound in this message" }),
};

const isText = (type) => /^text\/|[/+](?:json|xml)$/.test(type);

const url = (type, text) => `data:${type};charset=utf-8,${encodeURIComponent(text.toWellFormed())}`;

function page(text) {
  return [
    h("iframe", { sandbox: "", title: "Page in this message", src: url("text/html", text.replace(LEADING, "&lt;")) }),
    h("p", { class: "hint" }, "Without its scripts, its styles, and whatever it would load."),
  ];
}

/** A payload under its name, made when it is first looked at. */
function opened(kind, type, length, open, make) {
  const details = h("details", { class: "payload", open }, h("summary", {}, [`As ${kind}`, type, format.size(Math.round(length))].filter(Boolean).join(", ")));
  const fill = () => {
    if (details.open && details.children.length === 1) details.append(...[make()].flat());
  };
  details.addEventListener("toggle", fill);
  fill();
  return details;
}

function decoded(encoded) {
  try {
    return new TextDecoder().decode(Uint8Array.from(atob(encoded), (each) => each.charCodeAt(0)));
  } catch {
    return undefined;
  }
}

/** The object or list that a text has in it; undefined if it has something else. */
function json(text) {
  if (!/^\s*[[{]/.test(text)) return undefined;
  try {
    return parse(text);
  } catch {
    return undefined;
  }
}

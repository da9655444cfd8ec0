// What a message carries inside of its JSON, shown as what it is: images, sound, Markdown, pages, JSON as text.
// Nothing of it runs: an image is in <img>, where SVG has no scripts; a page is in a sandbox without any, and the
// policy of this page holds there, too, so that it loads nothing from elsewhere.

import * as format from "./format.js";
import { html, Widget } from "./html.js";
import { isContainer, parse } from "./json.js";
import { looksLikeMarkdown, markdown } from "./markdown.js";
import { tree } from "./tree.js";

const PAYLOADS = 20; // shown of one message
const VALUES = 20_000; // of a message that are looked at
const TEXT = 200_000; // characters of what is more than text; longer is in the JSON above
// A browser may connect to where a frame or link leads before it asks the policy, so these are shown as text.
const LEADING = /<(?=(?:iframe|frame|frameset|fencedframe|object|embed|link|meta|base)\b)/gi;

/** Return an element for each payload in a message. */
export function payloads(message) {
  const found = [];
  const queue = [message];
  for (let place = 0; place < queue.length && place < VALUES && found.length < PAYLOADS; place++) {
    const value = queue[place];
    if (!isContainer(value)) continue;
    const shown = payload(value);
    if (shown) found.push(shown);
    queue.push(...Object.values(value));
  }
  return found;
}

/** Return an element for what one block or resource has; null when that is only text or not known. */
export function payload(block) {
  const type = String(block.mimeType ?? "").split(";")[0].trim().toLowerCase();
  const encoded = [block.data, block.blob].find((each) => typeof each === "string");
  const media = /^(image|audio)\/[\w.+-]+$/.exec(type)?.[1];
  if (media && encoded !== undefined) {
    return opened(media, type, encoded.length * 0.75, true, () => MEDIA[media](`data:${type};base64,${encoded}`));
  }
  const text = typeof block.text === "string" ? block.text : isText(type) ? decoded(encoded ?? "") : undefined;
  if (!text || text.length > TEXT) return null;
  const shown = (kind, isOpen, make) => opened(kind, type, text.length, isOpen, make);
  if (type === "image/svg+xml") return shown("image", true, () => MEDIA.image(url(type, text)));
  if (type === "text/html") return shown("page", false, () => page(text));
  const value = type === "text/markdown" ? undefined : json(text);
  if (value !== undefined) return shown("JSON", false, () => tree(value));
  if (type === "text/markdown" || looksLikeMarkdown(text)) return shown("Markdown", true, () => markdown(text));
  return null;
}

const MEDIA = {
  image: (src) => html`<img src=${src} alt="Image in this message" />`,
  audio: (src) => html`<audio src=${src} controls aria-label="Sound in this message" />`,
};

const isText = (type) => /^text\/|[/+](?:json|xml)$/.test(type);

const url = (type, text) => `data:${type};charset=utf-8,${encodeURIComponent(text.toWellFormed())}`;

const page = (text) => html`
  <iframe sandbox="" title="Page in this message" src=${url("text/html", text.replace(LEADING, "&lt;"))} />
  <p class="hint">Without its scripts, its styles, and whatever it would load.</p>`;

const opened = (kind, type, length, isOpen, make) => html`
  <${Opened} title=${[`As ${kind}`, type, format.size(Math.round(length))].filter(Boolean).join(", ")}
    isOpen=${isOpen} make=${make} />`;

/** A payload under its name, made when it is first looked at. */
class Opened extends Widget {
  render({ title, isOpen, make }, { isMade = isOpen }) {
    return html`
      <details class="payload" open=${isOpen} ontoggle=${isMade ? null : () => this.setState({ isMade: true })}>
        <summary>${title}</summary>
        ${isMade && make()}
      </details>`;
  }
}

/** Return the text of base64; undefined when it is none. */
function decoded(encoded) {
  try {
    return new TextDecoder().decode(Uint8Array.from(atob(encoded), (each) => each.charCodeAt(0)));
  } catch {
    return undefined;
  }
}

/** Return the object or list that a text has in it; undefined if it has something else. */
function json(text) {
  if (!/^\s*[[{]/.test(text)) return undefined;
  try {
    return parse(text);
  } catch {
    return undefined;
  }
}

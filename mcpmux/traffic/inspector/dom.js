// Elements out of values. Text is text: nothing that comes from outside is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

export function h(name, attributes, ...children) {
  return build(document.createElement(name), attributes, children);
}

export function svg(name, attributes, ...children) {
  return build(document.createElementNS(SVG, name), attributes, children);
}

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    const isWord = name.startsWith("aria-") || name.startsWith("data-"); // these say false, too
    if (value === undefined || value === null || (value === false && !isWord)) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (isWord) element.setAttribute(name, String(value));
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Sets text and attributes only where they differ, so that nothing is laid out anew for nothing. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

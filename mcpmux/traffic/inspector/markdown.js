// Markdown as elements: headings, paragraphs, lists, quotes, tables, code; in lines code, emphasis and links.
// Markup in it stays text, and images are named, not loaded. Reading takes no more than the square of a line.

import { h } from "./dom.js";

const LINE = 5000; // characters of one paragraph that are looked at
const DEPTH = 8; // of quotes
const FENCE = /^\s*(```|~~~)/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const QUOTE = /^\s*>\s?/;
const RULE = /^\s*(?:-{3,}|\*{3,}|_{3,})\s*$/;
const BELOW_TITLES = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const SPANS = /`([^`]+)`|(!?)\[([^\][]*)\]\(([^()\s]*)\)|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*/g;

export const looksLikeMarkdown = (text) => text.includes("\n") && /^(?:#{1,6} |[-*+] |\d+\. |```|> )|\*\*[^*\n]+\*\*|\]\(https?:/m.test(text);

export function markdown(text, depth = 0) {
  const lines = text.split(/\r?\n/);
  const box = h("div", { class: "markdown" });
  let place = 0;
  const isTable = () => lines[place].includes("|") && lines[place + 1]?.includes("|") && BELOW_TITLES.test(lines[place + 1]);
  const takeWhile = (fits) => {
    const from = place;
    while (place < lines.length && fits(lines[place])) place++;
    return lines.slice(from, place);
  };
  while (place < lines.length) {
    const line = lines[place];
    const heading = HEADING.exec(line);
    if (!line.trim()) {
      place++;
    } else if (FENCE.test(line)) {
      place++;
      box.append(h("pre", {}, takeWhile((each) => !FENCE.test(each)).join("\n")));
      place++;
    } else if (heading) {
      box.append(h("h4", { "data-level": heading[1].length }, spans(heading[2])));
      place++;
    } else if (RULE.test(line)) {
      box.append(h("hr"));
      place++;
    } else if (QUOTE.test(line)) {
      const inside = takeWhile((each) => QUOTE.test(each)).map((each) => each.replace(QUOTE, "")).join("\n");
      box.append(h("blockquote", {}, depth < DEPTH ? markdown(inside, depth + 1) : inside));
    } else if (ITEM.test(line)) {
      box.append(list(takeWhile((each) => ITEM.test(each) || /^\s+\S/.test(each))));
    } else if (isTable()) {
      box.append(table(takeWhile((each) => each.includes("|"))));
    } else {
      const first = place++;
      takeWhile((each) => each.trim() && ![FENCE, HEADING, RULE, QUOTE, ITEM].some((other) => other.test(each)));
      box.append(h("p", {}, spans(lines.slice(first, place).join("\n"))));
    }
  }
  return box;
}

function list(lines) {
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item) items.push({ depth: Math.min(4, Math.floor(item[1].length / 2)), number: item[2], text: item[3] });
    else items.at(-1).text += `\n${line.trim()}`;
  }
  return h(items[0].number === undefined ? "ul" : "ol", {}, items.map(({ depth, number, text }) => h("li", { "data-depth": depth, value: number }, spans(text))));
}

function table([titles, , ...rows]) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => spans(cell.trim()));
  return h("table", {}, h("thead", {}, h("tr", {}, cells(titles).map((cell) => h("th", { scope: "col" }, ...cell)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, cells(row).map((cell) => h("td", {}, ...cell))))));
}

/** What stands in a line: texts and elements. */
function spans(text) {
  if (text.length > LINE) return [text];
  const found = [];
  let from = 0;
  for (const match of text.matchAll(SPANS)) {
    const [all, code, isImage, words, target, strong, emphasis] = match;
    found.push(text.slice(from, match.index));
    from = match.index + all.length;
    if (code !== undefined) found.push(h("code", {}, code));
    else if (strong !== undefined) found.push(h("strong", {}, strong));
    else if (emphasis !== undefined) found.push(h("em", {}, emphasis));
    else if (!isImage && /^https?:\/\//i.test(target)) found.push(h("a", { href: target, target: "_blank", rel: "noopener noreferrer" }, words || target));
    else found.push(`${isImage ? "image: " : ""}${words} (${target})`);
  }
  found.push(text.slice(from));
  return found;
}

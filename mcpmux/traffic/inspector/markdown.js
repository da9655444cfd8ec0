// Markdown as elements: headings, paragraphs, lists, quotes, tables, code; in lines code, emphasis and links.
// Markup in it stays text, and images are named, not loaded. Reading takes no more than the square of a line.

import { html } from "./html.js";

const LINE = 5000; // characters of one paragraph that are looked at
const DEPTH = 8; // of quotes
const FENCE = /^\s*(```|~~~)/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const QUOTE = /^\s*>\s?/;
const RULE = /^\s*(?:-{3,}|\*{3,}|_{3,})\s*$/;
const BELOW_TITLES = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const SPANS = /`([^`]+)`|(!?)\[([^\][]*)\]\(([^()\s]*)\)|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*/g;

const SIGNS = /^(?:#{1,6} |[-*+] |\d+\. |```|> )|\*\*[^*\n]+\*\*|\]\(https?:/m;

export const looksLikeMarkdown = (text) => text.includes("\n") && SIGNS.test(text);

/** Return the elements of a text. */
export function markdown(text, depth = 0) {
  const lines = text.split(/\r?\n/);
  const found = [];
  let place = 0;
  const isTable = () =>
    lines[place].includes("|") && lines[place + 1]?.includes("|") && BELOW_TITLES.test(lines[place + 1]);
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
      found.push(html`<pre>${takeWhile((each) => !FENCE.test(each)).join("\n")}</pre>`);
      place++;
    } else if (heading) {
      found.push(html`<h4 data-level=${heading[1].length}>${spans(heading[2])}</h4>`);
      place++;
    } else if (RULE.test(line)) {
      found.push(html`<hr />`);
      place++;
    } else if (QUOTE.test(line)) {
      const inside = takeWhile((each) => QUOTE.test(each)).map((each) => each.replace(QUOTE, "")).join("\n");
      found.push(html`<blockquote>${depth < DEPTH ? markdown(inside, depth + 1) : inside}</blockquote>`);
    } else if (ITEM.test(line)) {
      found.push(list(takeWhile((each) => ITEM.test(each) || /^\s+\S/.test(each))));
    } else if (isTable()) {
      found.push(table(takeWhile((each) => each.includes("|"))));
    } else {
      const first = place++;
      takeWhile((each) => each.trim() && ![FENCE, HEADING, RULE, QUOTE, ITEM].some((other) => other.test(each)));
      found.push(html`<p>${spans(lines.slice(first, place).join("\n"))}</p>`);
    }
  }
  return html`<div class="markdown">${found}</div>`;
}

function list(lines) {
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item) items.push({ depth: Math.min(4, Math.floor(item[1].length / 2)), number: item[2], text: item[3] });
    else items[items.length - 1].text += `\n${line.trim()}`;
  }
  return html`
    <${items[0].number === undefined ? "ul" : "ol"}>
      ${items.map(({ depth, number, text }) => html`<li data-depth=${depth} value=${number}>${spans(text)}</li>`)}
    <//>`;
}

function table([titles, , ...rows]) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => spans(cell.trim()));
  return html`
    <table>
      <thead><tr>${cells(titles).map((cell) => html`<th scope="col">${cell}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr>${cells(row).map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody>
    </table>`;
}

/** Return what stands in a line: texts and elements. */
function spans(text) {
  if (text.length > LINE) return [text];
  const found = [];
  let from = 0;
  for (const match of text.matchAll(SPANS)) {
    const [all, code, isImage, words, target, strong, emphasis] = match;
    found.push(text.slice(from, match.index));
    from = match.index + all.length;
    if (code !== undefined) found.push(html`<code>${code}</code>`);
    else if (strong !== undefined) found.push(html`<strong>${strong}</strong>`);
    else if (emphasis !== undefined) found.push(html`<em>${emphasis}</em>`);
    else if (isImage || !/^https?:\/\//i.test(target)) found.push(`${isImage ? "image: " : ""}${words} (${target})`);
    else found.push(html`<a href=${target} target="_blank" rel="noopener noreferrer">${words || target}</a>`);
  }
  found.push(text.slice(from));
  return found;
}

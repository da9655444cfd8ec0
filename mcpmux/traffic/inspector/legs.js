// The messages of an exchange on the legs to its client and its upstreams: what belongs together.

import { LISTS } from "./api.js";

/** @import { Message } from "./api.js" */

/** @typedef {{begin: number, end: number, from: number, to: number | null, method: string, status: string}} Bar */
/** @typedef {{name: string, side: string, bars: Bar[], marks: {at: number, index: number, method: string}[]}} Lane */

const sort = (kind) => (kind === "error" ? "result" : kind);

/**
 * Return the answer to the first message; undefined while there is none.
 * @param {Message[]} messages
 */
export const answerOf = (messages) => messages.find(({ record }) => record.answers === messages[0].record.seq);

/**
 * Return the index of the same message on the other leg: of the same sort and method, on its way through; the nearest.
 * @param {Message[]} messages
 * @param {number} index
 */
export function counterpart(messages, index) {
  const one = messages[index].record;
  /** @type {number | null} */
  let best = null;
  for (const [place, { record }] of messages.entries()) {
    if (record.leg === one.leg || record.direction === one.direction || record.method !== one.method) continue;
    if (sort(record.kind) !== sort(one.kind)) continue;
    if (best === null || Math.abs(place - index) < Math.abs(best - index)) best = place;
  }
  return best;
}

/**
 * Return pairs for an answer of a merged list: what an upstream has answered, and its own items in the merged list.
 * For the merged answer these are the pairs of all upstreams; for any other message there are none.
 * @param {Message[]} messages
 * @param {number} index
 * @returns {[Message, Message][]}
 */
export function partsOf(messages, index) {
  const whole = answerOf(messages);
  const { method = "", kind } = messages[index].record;
  const list = LISTS[method];
  const itemsOf = (message) => message.record.message?.result?.[list];
  const answers = messages.filter((each) => each.record.leg === "upstream" && each.record.method === method
    && Array.isArray(itemsOf(each)));
  if (kind !== "result" || !whole || !Array.isArray(itemsOf(whole)) || answers.length < 2) return [];
  const part = (/** @type {Message} */ { record, ...more }, items) =>
    ({ ...more, record: { ...record, message: { result: { [list]: items } } } });
  return answers.filter((each) => messages[index] === whole || messages[index] === each).map((each) => {
    const own = itemsOf(each).flatMap((item) => exposed(item, itemsOf(whole), each.record.peer) ?? []);
    return [part(each, itemsOf(each)), part(whole, own)];
  });
}

const nameOf = (item) => String(item.uri ?? item.uriTemplate ?? item.name);

/** Return the item of a merged list that an upstream's item became: of several, the one with the upstream's prefix. */
function exposed(item, merged, peer) {
  const likely = merged.filter((each) => nameOf(each).endsWith(nameOf(item)));
  return likely.find((each) => nameOf(each).startsWith(peer.split("#")[0])) ?? (likely.length === 1 ? likely[0] : null);
}

/**
 * Return the lanes of all peers, in the order of their first messages: a bar from a request to its answer, marks for
 * everything else.
 * @param {Message[]} messages
 */
export function lanesOf(messages) {
  /** @type {Map<string, Lane & {open: Map<number, Bar>}>} */
  const lanes = new Map();
  const end = messages[messages.length - 1].at;
  for (const [index, { at, record }] of messages.entries()) {
    const { peer, leg, kind, seq, answers = -1, method = kind } = record;
    if (!lanes.has(peer)) lanes.set(peer, { name: peer, side: leg, bars: [], marks: [], open: new Map() });
    const lane = lanes.get(peer);
    if (!lane) continue;
    const bar = lane.open.get(answers);
    if (kind === "request") {
      const begun = { begin: at, end, from: index, to: null, method, status: "open" };
      lane.bars.push(begun);
      lane.open.set(seq, begun);
    } else if (bar && sort(kind) === "result") {
      lane.open.delete(answers);
      const status = record.failed ? "tool_error" : kind === "result" ? "ok" : kind;
      Object.assign(bar, { end: at, to: index, status });
    } else {
      lane.marks.push({ at, index, method });
    }
  }
  return [...lanes.values()];
}

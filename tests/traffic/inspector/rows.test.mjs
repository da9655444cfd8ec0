// The list of exchanges as a page knows it.

import assert from "node:assert/strict";
import test from "node:test";

import { Rows } from "../../../mcpmux/traffic/inspector/rows.js";

const rows = (from, to) => Array.from({ length: to - from + 1 }, (_, index) => ({ row: from + index, status: "ok" }));

/** Return the list of a server that has so many rows, started with a filter, and all that it was asked. */
async function started(last, filter = "", found = rows(Math.max(1, last - 199), last)) {
  const asked = [];
  const request = async (parameters) => {
    asked.push(parameters);
    const { before = last + 1, limit } = parameters;
    const part = filter ? found : rows(Math.max(1, before - limit), before - 1);
    return { first: 1, last, messages: last, run: "r", before: null, rows: part };
  };
  const moves = [];
  const list = new Rows(request, (moved) => moves.push(moved), assert.fail);
  await list.start(filter);
  return { list, asked, moves };
}

const event = (last, some, more = {}) => ({ first: 1, last, messages: last, rows: some, gone: [], ...more });

test("the newest row is on top and any place can be looked at", async () => {
  const { list, asked } = await started(1000);
  assert.deepEqual([list.length, list.numberAt(0), list.indexOf(1), list.at(0)?.row], [1000, 1000, 999, 1000]);
  list.ensure(500, 540);
  list.ensure(510, 520);
  await Promise.resolve();
  assert.deepEqual(asked.slice(1).map(({ before }) => before), [600]); // one question for neighbours
});

test("few questions are asked at once", async () => {
  const { list, asked } = await started(10_000);
  for (let place = 1000; place < 9000; place += 500) list.ensure(place, place + 40);
  assert.equal(asked.length, 1 + 4);
});

test("what comes is on top unless the list is paused", async () => {
  const { list, moves } = await started(10);
  list.hear(event(12, rows(11, 12)));
  assert.deepEqual([list.length, moves.at(-1)], [12, 2]);
  list.pause();
  list.hear(event(15, rows(13, 15)));
  assert.deepEqual([list.length, list.fresh, moves.at(-1)], [12, 3, 0]);
});

test("a flood pauses the list", async () => {
  const { list } = await started(10);
  list.hear(event(611, rows(412, 611)));
  assert.deepEqual([list.paused, list.flooded, list.length], [true, true, 10]);
});

test("with a filter rows come and go as they fit it", async () => {
  const { list } = await started(10, "status=open", rows(8, 10));
  list.hear(event(11, [{ row: 11, status: "open" }], { gone: [9] }));
  assert.deepEqual([0, 1, 2].map((place) => list.numberAt(place)), [11, 10, 8]);
  assert.deepEqual([list.length, list.indexOf(9), list.complete], [3, -1, true]);
});

test("another run of mcpmux starts the list anew", async () => {
  const { list } = await started(100);
  list.hear(event(2, rows(1, 2)));
  assert.deepEqual([list.length, list.known.size], [2, 2]);
});

test("rows that may have changed unnoticed are forgotten", async () => {
  const { list } = await started(3);
  list.hear(event(4, [{ row: 4, status: "open" }]));
  list.hear(event(5, rows(5, 5), { skipped: true }));
  assert.deepEqual([...list.known.keys()].sort(), [1, 2, 3, 5]);
});

test("a sorted list stays sorted as exchanges go on", async () => {
  const timed = (row, ms) => ({ row, ms, status: "ok" });
  const { list, asked } = await started(4, "x", [timed(2, 30), timed(4, 20), timed(1, 10)]);
  await list.start("x", false, "-duration");
  assert.equal(asked[1].sort, "-duration");
  list.hear(event(6, [timed(5, 25), { row: 6, status: "note" }, timed(1, 40)]));
  assert.deepEqual([0, 1, 2, 3].map((place) => list.numberAt(place)), [1, 2, 5, 4]);
  list.hear(event(7, [{ row: 7, status: "open", at: 0 }], { first: 3 })); // it has lasted since 1970
  assert.deepEqual([list.length, list.numberAt(0), list.indexOf(1)], [3, 7, -1]);
});

test("a cleared list shows only what comes then, until all is shown again", async () => {
  const { list, asked } = await started(10);
  await list.clear();
  assert.equal(asked[1].after, 10);
  list.hear(event(12, rows(11, 12)));
  assert.deepEqual([list.length, list.numberAt(0)], [2, 12]);
  list.hear(event(1, rows(1, 1))); // another run
  assert.equal(list.length, 1);
  await list.clear(0);
  assert.deepEqual([asked[2].after, list.length], [0, 10]);
});

test("rows of an earlier filter are suggested where one finds none", async () => {
  const { list } = await started(10, "a", rows(1, 3));
  list.request = async () => ({ first: 1, last: 10, messages: 10, run: "r", before: null, rows: [] });
  await list.start("ab");
  assert.deepEqual([list.length, [...list.all()].map(({ row }) => row)], [0, [1, 2, 3]]);
});

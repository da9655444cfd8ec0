// What the pages of the inspector compute without a browser.

import assert from "node:assert/strict";
import test from "node:test";

import { compare, inside } from "../../../mcpmux/traffic/inspector/compare.js";
import { nextSort } from "../../../mcpmux/traffic/inspector/columns.js";
import * as copying from "../../../mcpmux/traffic/inspector/copying.js";
import * as format from "../../../mcpmux/traffic/inspector/format.js";
import { parse } from "../../../mcpmux/traffic/inspector/json.js";
import { answerOf, counterpart, lanesOf, partsOf } from "../../../mcpmux/traffic/inspector/legs.js";
import { fieldsOf, kindOf, readText } from "../../../mcpmux/traffic/inspector/schema.js";
import { suggest } from "../../../mcpmux/traffic/inspector/suggest.js";
import { adviceFor } from "../../../mcpmux/traffic/inspector/upstreams.js";
import { expand, variables } from "../../../mcpmux/traffic/inspector/template.js";

const ENDPOINT = "http://host/mcp/";

test("a number of any length keeps its digits", () => {
  const text = '{"large":12345678901234567890,"half":0.5,"small":7}';
  assert.equal(JSON.stringify(parse(text)), text);
});

test("two values are marked where they differ and on the way there", () => {
  const [left, right] = compare({ a: [1, { b: 1 }], gone: 1, "x/y": 1 }, { a: [1, { b: 2 }], "x/y": 2, more: 1 });
  const way = [["", true], ["/a", true], ["/a/1", true]].map(([path, mark]) => [inside(path), mark]);
  const changed = [["/a/1/b", "changed"], ["/x~1y", "changed"]];
  assert.deepEqual(new Map([...changed, ["/gone", "only"], ...way]), left);
  assert.deepEqual(new Map([...changed, ["/more", "only"], ...way]), right);
});

test("numbers of any length are compared by their digits", () => {
  const one = () => parse("[12345678901234567890]");
  assert.equal(compare(one(), one())[0].size, 0);
  assert.equal(compare(one(), parse("[12345678901234567891]"))[0].get("/0"), "changed");
});

test("durations and sizes of all magnitudes are short", () => {
  const durations = [undefined, 0, 0.0123, 1.25, 12.5, 1250, 12_500, 125_000].map(format.duration);
  assert.deepEqual(durations, ["", "0 µs", "12.3 µs", "1.25 ms", "12.5 ms", "1.25 s", "12.5 s", "2.08 min"]);
  const sizes = [undefined, 0, 1023, 1024, 102_400, 3_145_728].map(format.size);
  assert.deepEqual(sizes, ["", "0 B", "1023 B", "1.00 KiB", "100 KiB", "3.00 MiB"]);
});

test("rates, rounded values and moments are written as on a terminal", () => {
  assert.deepEqual([0, 0.0333, 41.83, 1234.5].map(format.rate), ["0/s", "0.0333/s", "41.8/s", "1,235/s"]);
  assert.deepEqual([999.6, 59_990].map(format.duration), ["1.00 s", "1.00 min"]);
  const at = new Date(2026, 0, 2, 3, 4, 5);
  assert.equal(format.moment(at.getTime()), "2026-01-02 03:04:05");
});

test("it is said what to do about an upstream that clients cannot use", () => {
  const advice = (state, more) => adviceFor({ name: "docs", state, ...more });
  assert.equal(advice("ready"), "");
  assert.match(advice("down", { trouble: "HTTP 401: no token" }), /mcpmux auth login docs$/);
  assert.match(advice("down", { trouble: "exited", command: "npx docs" }), /terminal/);
  assert.match(advice("down", { trouble: "exited", command: "npx docs", output: ["no"] }), /output/);
  assert.match(advice("down", { trouble: "connection refused" }), /address/);
  assert.match(advice("disabled"), /Enable/);
});

test("a URI template is expanded as RFC 6570 says", () => {
  const values = { var: "a b/c", hello: "Hello!", x: "1" };
  for (const [template, uri] of [
    ["{var}", "a%20b%2Fc"], ["{+var}", "a%20b/c"], ["{#var}", "#a%20b/c"], ["{.x,hello}", ".1.Hello!"],
    ["{/x,none}", "/1"], ["{;x}", ";x=1"], ["{?x,none,hello}", "?x=1&hello=Hello!"], ["{&x}", "&x=1"], ["{none}", ""],
  ]) assert.equal(expand(template, values), uri, template);
  assert.deepEqual(variables("{+a,b:3}{?a,c*}"), ["a", "b", "c"]);
});

test("a word is quoted so that a shell reads it and a terminal obeys nothing", () => {
  assert.equal(copying.quote("a/b=c"), "a/b=c");
  assert.equal(copying.quote("it's"), "'it'\\''s'");
  assert.equal(copying.quote("\x1b'\\"), "$'\\033\\'\\\\'");
});

test("a command goes to the view of its client and has no option of others", () => {
  const list = copying.command({ view: "coding?tools=a*" }, { method: "tools/list" }, ENDPOINT);
  assert.equal(list, "mcpmux ls 'http://host/mcp/coding?tools=a*' tools");
  const read = copying.command({}, { method: "resources/read", params: { uri: "-o/etc/x" } }, ENDPOINT);
  assert.equal(read, "mcpmux read http://host/mcp -- -o/etc/x");
  const prompt = { method: "prompts/get", params: { name: "p", arguments: { a: "b c", d: "-" } } };
  assert.equal(copying.command({}, prompt, ENDPOINT), `mcpmux prompt http://host/mcp p 'a=b c' d=-`);
  assert.equal(copying.command({}, { method: "ping" }, ENDPOINT), null);
});

test("a name that no header can hold is sent in base64", () => {
  const meta = { "io.modelcontextprotocol/protocolVersion": "2026-07-28" };
  const request = { method: "tools/call", params: { name: "ü", _meta: meta } };
  assert.match(copying.http({}, request, ENDPOINT), /Mcp-Name: =\?base64\?w7w=\?=/);
});

const message = (at, record) => ({ at, record: { kind: "request", direction: "in", ...record } });
const CALL = [
  message(1, { seq: 1, leg: "client", peer: "a", method: "tools/call" }),
  message(2, { seq: 2, leg: "upstream", peer: "docs", method: "tools/call", direction: "out" }),
  message(3, { seq: 3, leg: "upstream", peer: "docs", method: "notifications/progress", kind: "notification" }),
  message(4, { seq: 4, leg: "upstream", peer: "docs", kind: "error", answers: 2 }),
  message(5, { seq: 5, leg: "client", peer: "a", kind: "result", answers: 1, direction: "out" }),
];

test("a message is shown beside the same one on the other leg", () => {
  assert.deepEqual(CALL.map((_, index) => counterpart(CALL, index)), [1, 0, null, 4, 3]);
  assert.equal(answerOf(CALL), CALL[4]);
  assert.equal(answerOf(CALL.slice(0, 4)), undefined);
});

test("a merged list is compared with each upstream's own items", () => {
  const list = (seq, leg, peer, tools, more) => message(seq, {
    seq, leg, peer, method: "tools/list", kind: "result", message: { result: { tools } }, ...more,
  });
  const [find, ask, asked] = [{ name: "find" }, { name: "ask" }, { name: "search__find" }];
  const messages = [
    message(1, { seq: 1, leg: "client", peer: "a", method: "tools/list" }),
    list(2, "upstream", "docs", [find, ask]), list(3, "upstream", "search#2", [find]),
    list(4, "client", "a", [{ name: "docs__find" }, asked], { direction: "out", answers: 1 }),
  ];
  const names = (pair) => pair.map(({ record }) => record.message.result.tools.map(({ name }) => name));
  const docs = [["find", "ask"], ["docs__find"]];
  assert.deepEqual(partsOf(messages, 3).map(names), [docs, [["find"], ["search__find"]]]);
  assert.deepEqual(partsOf(messages, 1).map(names), [docs]);
  assert.deepEqual(partsOf(messages, 0), []);
  assert.deepEqual(partsOf([messages[0], messages[1], messages[3]], 2), []); // it is the same list
  assert.deepEqual(partsOf(CALL, 4), []);
});

test("a lane has a bar from each request to its answer and marks for the rest", () => {
  const [client, docs] = lanesOf(CALL);
  assert.deepEqual(client.bars, [{ begin: 1, end: 5, from: 0, to: 4, method: "tools/call", status: "ok" }]);
  assert.deepEqual(docs.bars, [{ begin: 2, end: 4, from: 1, to: 3, method: "tools/call", status: "error" }]);
  assert.deepEqual(docs.marks, [{ at: 3, index: 2, method: "notifications/progress" }]);
});

const SCHEMA = {
  properties: {
    name: { type: "string" }, born: { type: "string", format: "date" },
    size: { type: ["integer", "null"] }, kind: { enum: ["a", 1], enumNames: ["A"] },
    days: { type: "array", items: { enum: ["mon"] } }, way: { oneOf: [{ const: 1, title: "one" }] },
    owner: { anyOf: [{ $ref: "#/$defs/o~1wner" }, { type: "null" }], default: null }, sure: { type: "boolean" },
    more: { $ref: "#/properties/more" }, any: true,
  },
  required: ["name"],
  $defs: { "o/wner": { type: "object" } },
};

test("a property of a schema is a field of some kind", () => {
  const fields = fieldsOf(SCHEMA);
  assert.deepEqual(fields.filter(({ required }) => required).map(({ name }) => name), ["name"]);
  const kinds = Object.fromEntries(fields.map((field) => [field.name, kindOf(field)]));
  assert.deepEqual(kinds, {
    name: "string", born: "date", size: "integer", kind: "", days: "several", way: "", owner: "object, as JSON",
    sure: "",
    more: "as JSON", any: "as JSON",
  });
  const labels = fields.filter(({ choices }) => choices).map(({ choices }) => choices.map(([label]) => label));
  assert.deepEqual(labels, [["A", "1"], ["mon"], ["one"], ["true", "false"]]);
  assert.deepEqual([fieldsOf(undefined), fieldsOf({})], [[], []]);
});

test("a text in a field is a value, none, or wrong in words", () => {
  for (const [type, text, value] of [
    ["string", "", undefined], ["string", " a", " a"], ["integer", " 7 ", 7], ["number", "1e3", 1000],
    ["array", "[1]", [1]], [undefined, "null", null], ["object", " ", undefined],
  ]) assert.deepEqual(readText(type, text), value);
  assert.equal(JSON.stringify(readText("integer", "12345678901234567890")), "12345678901234567890");
  for (const [type, text, words] of [
    ["integer", "1.5", /whole/], ["number", "0x1", /number/], ["array", "{}", /array/], ["object", "[]", /object/],
    [undefined, "{", /not JSON/],
  ]) assert.throws(() => readText(type, text), words);
});

test("a column is sorted one way, the other way, and then not", () => {
  const three = (key) => [nextSort("-size", key), nextSort(nextSort("", key), key), nextSort(nextSort(nextSort("", key),
    key), key)];
  assert.deepEqual(three("duration"), ["-duration", "duration", ""]);
  assert.deepEqual(three("name"), ["name", "-name", ""]);
});

const KEYS = [
  { name: "upstream", about: "name of the upstream", operator: "=", values: [] },
  { name: "until", about: "before", operator: "=", values: [] },
  { name: "status", about: "", operator: "=", values: ["ok", "tool_error"] },
];
const ROWS = [
  { target: "docs__find", upstreams: ["docs"], method: "tools/call" },
  { target: "docs__find out", upstreams: ["web"], method: "tools/call" },
];

test("half a filter may become keys, values that were seen, and earlier filters", () => {
  const texts = (text, recent = []) => suggest(text, KEYS, ROWS, recent).map((each) => each.text);
  assert.deepEqual(texts("", ["status=ok"]), ["status=ok"]);
  assert.deepEqual(texts("u"), ["upstream=", "until=", 'uri="docs__find out"']);
  assert.deepEqual(texts("status=ok !upstream="), ["status=ok !upstream=docs", "status=ok !upstream=web"]);
  assert.deepEqual(texts("status=E"), ["status=tool_error"]);
  assert.deepEqual(texts("uri~OUT"), ['uri~"docs__find out"']);
  assert.deepEqual(texts("do"), ["uri=docs__find", 'uri="docs__find out"', "upstream=docs"]);
  for (const text of ["upstream=docs", "status=ok ", "toString=", 'text~"a b', "duration>1"]) {
    assert.deepEqual(texts(text, ["x"]), [], text);
  }
});

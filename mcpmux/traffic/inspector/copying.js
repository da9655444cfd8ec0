// An exchange as text to paste elsewhere: a command of mcpmux, a request for curl, JSON.

import { LISTS, viewOf } from "./api.js";

/** @import { Row } from "./api.js" */

/** @type {Record<string, string>} */
const NAMED_BY = { "tools/call": "name", "prompts/get": "name", "resources/read": "uri" };
const VERSION = "io.modelcontextprotocol/protocolVersion"; // in `_meta` of the modern revision
const LEGACY = "2025-11-25"; // where the revision is not known
const TOKEN = '"Authorization: Bearer $MCPMUX_TOKEN"'; // the shell puts it in
const SESSION = '-H "Mcp-Session-Id: $MCP_SESSION"';
const SAFE = /^[\w@%+=:,./-]+$/;
const CONTROL = /[\x00-\x1f\x7f-\x9f]/g;

/** Return a word as a shell reads it. What a terminal would obey is written as an escape. */
export function quote(word) {
  if (SAFE.test(word)) return word;
  const octal = (byte) => `\\${byte.toString(8).padStart(3, "0")}`;
  const escaped = (character) => [...new TextEncoder().encode(character)].map(octal).join("");
  if (word.search(CONTROL) >= 0) return `$'${word.replace(/[\\']/g, "\\$&").replace(CONTROL, escaped)}'`;
  return `'${word.replaceAll("'", "'\\''")}'`;
}

/**
 * Return where the client of a row connects: in its view, with what it narrows it to.
 * @param {Pick<Row, "view">} row
 * @param {string} endpoint
 */
function place(row, endpoint) {
  const { name, narrowing } = viewOf(row);
  return endpoint.replace(/\/$/, "") + (name && `/${name}`) + (narrowing && `?${narrowing}`);
}

/** Return the command that sends the request again; null where there is none. */
export function command(row, request, endpoint) {
  const { method, params = {} } = request;
  const last = (...words) => { // they are no options
    const quoted = words.map(quote).join(" ");
    return words.some((word) => word.startsWith("-")) ? `-- ${quoted}` : quoted;
  };
  const url = quote(place(row, endpoint));
  if (Object.hasOwn(LISTS, method)) {
    return `mcpmux ls ${url} ${LISTS[method].replace("resourceTemplates", "templates")}`;
  }
  if (method === "resources/read") return `mcpmux read ${url} ${last(String(params.uri))}`;
  if (method === "prompts/get") {
    const pairs = Object.entries(params.arguments ?? {}).map(([name, text]) => `${name}=${text}`);
    return `mcpmux prompt ${url} ${last(String(params.name), ...pairs)}`;
  }
  if (method !== "tools/call") return null;
  const given = Object.keys(params.arguments ?? {}).length ? ` --args ${quote(JSON.stringify(params.arguments))}` : "";
  return `mcpmux call ${url}${given} ${last(String(params.name))}`;
}

/** Return the same as a request by HTTP in its revision. A legacy one needs a session, which is opened first. */
export function http(row, request, endpoint) {
  const { method, params } = request;
  const send = (message, fields, options) => curl(place(row, endpoint), message, fields, options);
  const version = params?._meta?.[VERSION];
  if (version !== undefined) {
    const name = Object.hasOwn(NAMED_BY, method) ? params[NAMED_BY[method]] : undefined;
    const named = name === undefined ? [] : [`Mcp-Name: ${encode(String(name))}`];
    return send(request, [`MCP-Protocol-Version: ${version}`, `Mcp-Method: ${method}`, ...named]);
  }
  if (method === "initialize") return send(request, []);
  const revision = row.revision ?? LEGACY;
  const client = { protocolVersion: revision, capabilities: {}, clientInfo: { name: "curl", version: "1" } };
  const hello = { jsonrpc: "2.0", id: 0, method: "initialize", params: client };
  const fields = [`MCP-Protocol-Version: ${revision}`];
  return [
    `MCP_SESSION=$(${send(hello, [], ["-o /dev/null", "-D -"])} ` +
      "| tr -d '\\r' | sed -n 's/^[Mm]cp-[Ss]ession-[Ii]d: //p')",
    send({ jsonrpc: "2.0", method: "notifications/initialized" }, fields, [SESSION]),
    send(request, fields, [SESSION]),
  ].join("\n");
}

/** @param {string[]} options */
function curl(url, message, headers, options = []) {
  const fields = ["Content-Type: application/json", "Accept: application/json, text/event-stream", ...headers];
  const quoted = fields.map((field) => `-H ${quote(field)}`);
  const data = `--data-raw ${quote(JSON.stringify(message))}`;
  return [`curl -sS ${quote(url)}`, ...options, `-H ${TOKEN}`, ...quoted, data].join(" \\\n  ");
}

/** Return a header value: as it is when that is safe, else in the base64 form. */
function encode(text) {
  if (/^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$/.test(text) && !text.startsWith("=?base64?")) return text;
  return `=?base64?${btoa(String.fromCharCode(...new TextEncoder().encode(text)))}?=`;
}

/** Return what was asked and answered. */
export const json = (request, answer) => JSON.stringify({ request, answer }, null, 2);

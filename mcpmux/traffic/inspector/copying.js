// An exchange as text to paste elsewhere: a command of mcpmux, a request for curl, JSON.

const KINDS = { "resources/list": "resources", "resources/templates/list": "templates", "tools/list": "tools", "prompts/list": "prompts" };
const NAMED_BY = { "tools/call": "name", "prompts/get": "name", "resources/read": "uri" };
const VERSION = "io.modelcontextprotocol/protocolVersion"; // in `_meta` of the modern revision
const LEGACY = "2025-11-25"; // where the revision is not known
const TOKEN = '"Authorization: Bearer $MCPMUX_TOKEN"'; // the shell puts it in
const SAFE = /^[\w@%+=:,./-]+$/;

/** A word as a shell reads it. What a terminal would obey is written as an escape. */
export function quote(word) {
  if (SAFE.test(word)) return word;
  const escaped = (byte) => `\\${byte.toString(8).padStart(3, "0")}`;
  const control = (character) => [...new TextEncoder().encode(character)].map(escaped).join("");
  if (/[\x00-\x1f\x7f-\x9f]/.test(word)) return `$'${word.replace(/[\\']/g, "\\$&").replace(/[\x00-\x1f\x7f-\x9f]/g, control)}'`;
  return `'${word.replaceAll("'", "'\\''")}'`;
}

/** Where the client of a row connects: in its view, with what it narrows it to. */
function place(row, endpoint) {
  const [view, ...narrowed] = (row.view ?? "").split("?");
  const here = endpoint.replace(/(?<=\/\/)(0\.0\.0\.0|\[::\])(?=[:/])/, location.hostname); // all addresses, of which this is one
  return here.replace(/\/$/, "") + (view && `/${view}`) + (narrowed.length ? `?${narrowed.join("?")}` : "");
}

/** The command that sends the request again; null where there is none. */
export function command(row, request, endpoint) {
  const { method, params = {} } = request;
  const last = (word) => (word.startsWith("-") ? `-- ${quote(word)}` : quote(word)); // it is no option
  const url = quote(place(row, endpoint));
  if (Object.hasOwn(KINDS, method)) return `mcpmux ls ${url} ${KINDS[method]}`;
  if (method === "resources/read") return `mcpmux read ${url} ${last(String(params.uri))}`;
  if (method !== "tools/call") return null;
  const given = Object.keys(params.arguments ?? {}).length ? ` --args ${quote(JSON.stringify(params.arguments))}` : "";
  return `mcpmux call ${url}${given} ${last(String(params.name))}`;
}

/** The same as a request by HTTP in its revision. A legacy one needs a session, which is opened first. */
export function http(row, request, endpoint) {
  const version = request.params?._meta?.[VERSION];
  if (version !== undefined) {
    const named = Object.hasOwn(NAMED_BY, request.method) ? request.params[NAMED_BY[request.method]] : undefined;
    return curl(row, endpoint, request, [`MCP-Protocol-Version: ${version}`, `Mcp-Method: ${request.method}`, named === undefined ? null : `Mcp-Name: ${encode(String(named))}`]);
  }
  if (request.method === "initialize") return curl(row, endpoint, request, []);
  const revision = row.revision ?? LEGACY;
  const hello = { jsonrpc: "2.0", id: 0, method: "initialize", params: { protocolVersion: revision, capabilities: {}, clientInfo: { name: "curl", version: "1" } } };
  const inside = [`MCP-Protocol-Version: ${revision}`];
  return [
    `MCP_SESSION=$(${curl(row, endpoint, hello, [], ["-o /dev/null", "-D -"])} | tr -d '\\r' | sed -n 's/^[Mm]cp-[Ss]ession-[Ii]d: //p')`,
    curl(row, endpoint, { jsonrpc: "2.0", method: "notifications/initialized" }, inside, ['-H "Mcp-Session-Id: $MCP_SESSION"']),
    curl(row, endpoint, request, inside, ['-H "Mcp-Session-Id: $MCP_SESSION"']),
  ].join("\n");
}

function curl(row, endpoint, message, headers, options = []) {
  const fields = ["Content-Type: application/json", "Accept: application/json, text/event-stream", ...headers].filter(Boolean);
  return [`curl -sS ${quote(place(row, endpoint))}`, ...options, `-H ${TOKEN}`, ...fields.map((field) => `-H ${quote(field)}`), `--data-raw ${quote(JSON.stringify(message))}`].join(" \\\n  ");
}

/** A header value: as it is when that is safe, else in the base64 form. */
function encode(text) {
  if (/^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$/.test(text) && !text.startsWith("=?base64?")) return text;
  return `=?base64?${btoa(String.fromCharCode(...new TextEncoder().encode(text)))}?=`;
}

/** What was asked and answered. */
export const json = (request, answer) => JSON.stringify({ request, answer }, null, 2);

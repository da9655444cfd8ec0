// A server on the TypeScript SDK 2.x with all that the conformance suite asks for, over HTTP.
//
//     node everything.cjs both      sessions of the 2025 revisions, and 2026-07-28
//     node everything.cjs modern    2026-07-28 only
//
// Needs the SDK in NODE_PATH. Whatever a tool asks is asked by its result; in a session the SDK makes requests of
// that. It says `listening on http://127.0.0.1:PORT/mcp` on standard output.

'use strict';

const { randomBytes, randomUUID } = require('node:crypto');
const http = require('node:http');
const { setTimeout: sleep } = require('node:timers/promises');
const { json } = require('node:stream/consumers');
const {
  CLIENT_CAPABILITIES_META_KEY,
  McpServer,
  ProtocolError,
  ProtocolErrorCode,
  ResourceTemplate,
  classifyInboundRequest,
  createMcpHandler,
  createRequestStateCodec,
  fromJsonSchema,
  isInitializeRequest,
} = require('@modelcontextprotocol/server');
const { NodeStreamableHTTPServerTransport, localhostHostValidation, toNodeHandler } = require('@modelcontextprotocol/node');
const EVERYTHING = require('./everything.json');

const OFFERED_BY = { 'sampling/createMessage': 'sampling', 'elicitation/create': 'elicitation', 'roots/list': 'roots' };
const DONE = { content: [{ type: 'text', text: 'done' }] };
const RECONNECT_MILLISECONDS = 200; // for a client whose stream was closed to be back
const RETRY_MILLISECONDS = 100;

const modernOnly = process.argv[2] === 'modern';
const states = createRequestStateCodec({ key: randomBytes(32) });

/** A value with the arguments in the place of their names. */
function fill(value, args) {
  let text = JSON.stringify(value);
  for (const [name, argument] of Object.entries(args ?? {})) {
    text = text.replaceAll(`$${name}`, JSON.stringify(String(argument)).slice(1, -1));
  }
  return JSON.parse(text);
}

/** What is still to be asked, as a result; undefined when all is answered. */
async function nextQuestion(name, args, ctx) {
  const rounds = EVERYTHING.rounds[name] ?? [];
  const responses = ctx.mcpReq.inputResponses ?? {};
  let asked = ctx.mcpReq.requestState()?.asked ?? 0;
  if (asked < rounds.length && Object.keys(rounds[asked]).every((key) => key in responses)) asked += 1;
  if (asked >= rounds.length) return undefined;
  let requests = Object.entries(fill(rounds[asked], args));
  if (name === 'test_input_required_result_capabilities') {
    const offered = ctx.mcpReq.envelope?.[CLIENT_CAPABILITIES_META_KEY] ?? {};
    requests = requests.filter(([, request]) => OFFERED_BY[request.method] in offered);
  }
  return {
    resultType: 'input_required',
    inputRequests: Object.fromEntries(requests),
    requestState: await states.mint({ asked }),
  };
}

async function callTool(name, args, ctx) {
  for (const text of EVERYTHING.logs[name] ?? []) await ctx.mcpReq.log('info', text);
  const progressToken = ctx.mcpReq._meta?.progressToken;
  if (name === 'test_tool_with_progress' && progressToken !== undefined) {
    for (const progress of [0, 50, 100]) {
      await ctx.mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress, total: 100 } });
    }
  } else if (name === 'test_reconnection') {
    ctx.http?.closeSSE?.();
    await sleep(RECONNECT_MILLISECONDS);
  } else if (name === 'test_trigger_tool_change') {
    modern.notify.toolsChanged();
  } else if (name === 'test_trigger_prompt_change') {
    modern.notify.promptsChanged();
  }
  return (await nextQuestion(name, args, ctx)) ?? EVERYTHING.results[name] ?? DONE;
}

function contentsOf(uri) {
  const found = EVERYTHING.contents[uri];
  if (found === undefined) throw new ProtocolError(ProtocolErrorCode.InvalidParams, 'Resource not found', { uri });
  return { contents: [{ uri, ...found }] };
}

/** A schema in which all arguments of a prompt are texts that are required. */
function schemaOf(prompt) {
  const properties = Object.fromEntries(prompt.arguments.map((name) => [name, { type: 'string' }]));
  return fromJsonSchema({ type: 'object', properties, required: prompt.arguments });
}

function makeServer() {
  const listChanged = true;
  const capabilities = {
    tools: { listChanged },
    prompts: { listChanged },
    resources: { listChanged, subscribe: true },
    logging: {},
    completions: {},
  };
  const info = { name: 'everything-typescript', version: '1.0' };
  const server = new McpServer(info, { capabilities, requestState: { verify: states.verify } });
  for (const [name, { description, inputSchema }] of Object.entries(EVERYTHING.tools)) {
    const schema = fromJsonSchema(inputSchema ?? { type: 'object' });
    server.registerTool(name, { description, inputSchema: schema }, (args, ctx) => callTool(name, args, ctx));
  }
  for (const { uri, name, mimeType } of EVERYTHING.resources) {
    server.registerResource(name, uri, { mimeType }, () => contentsOf(uri));
  }
  for (const { uriTemplate, name, mimeType } of EVERYTHING.resourceTemplates) {
    const template = new ResourceTemplate(uriTemplate, { list: undefined });
    server.registerResource(name, template, { mimeType }, (uri) => contentsOf(uri.href));
  }
  for (const [name, prompt] of Object.entries(EVERYTHING.prompts)) {
    const options = { description: prompt.description, argsSchema: schemaOf(prompt) };
    server.registerPrompt(name, options, async (args, ctx) => {
      return (await nextQuestion(name, args, ctx)) ?? { messages: fill(EVERYTHING.messages[name], args) };
    });
  }
  server.server.setRequestHandler('completion/complete', () => ({ completion: { values: [] } }));
  for (const method of ['resources/subscribe', 'resources/unsubscribe', 'logging/setLevel']) {
    server.server.setRequestHandler(method, () => ({}));
  }
  return server;
}

/** All events that were ever sent in a session, so that its client can go on behind any of them. */
class KeptEvents {
  events = [];

  async storeEvent(streamId, message) {
    return String(this.events.push({ streamId, message }));
  }

  async replayEventsAfter(lastEventId, { send }) {
    const last = Number(lastEventId);
    const { streamId } = this.events[last - 1];
    for (const [index, event] of [...this.events.entries()].slice(last)) {
      if (event.streamId === streamId && event.message?.jsonrpc) await send(String(index + 1), event.message);
    }
    return streamId;
  }
}

const modern = createMcpHandler(makeServer, { legacy: 'reject' });
const answerModern = toNodeHandler(modern);
const sessions = new Map();

async function answerSession(request, response, body) {
  const id = request.headers['mcp-session-id'];
  let transport = sessions.get(id);
  if (transport === undefined && !isInitializeRequest(body)) {
    const error = { code: -32600, message: id ? 'Unknown session' : 'No session' };
    response.writeHead(id ? 404 : 400, { 'Content-Type': 'application/json' });
    response.end(JSON.stringify({ jsonrpc: '2.0', id: null, error }));
    return;
  }
  if (transport === undefined) {
    transport = new NodeStreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      eventStore: new KeptEvents(),
      retryInterval: RETRY_MILLISECONDS,
      onsessioninitialized: (started) => void sessions.set(started, transport),
      onsessionclosed: (ended) => void sessions.delete(ended),
    });
    await makeServer().connect(transport);
  }
  await transport.handleRequest(request, response, body);
}

const isOwnHost = localhostHostValidation();

async function answer(request, response) {
  if (!isOwnHost(request, response)) return;
  const body = request.method === 'POST' ? await json(request) : undefined;
  const { kind } = classifyInboundRequest({
    httpMethod: request.method,
    protocolVersionHeader: request.headers['mcp-protocol-version'],
    mcpMethodHeader: request.headers['mcp-method'],
    body,
  });
  if (modernOnly || kind !== 'legacy') await answerModern(request, response, body);
  else await answerSession(request, response, body);
}

const listener = http.createServer((request, response) => {
  answer(request, response).catch((error) => {
    console.error(error);
    response.destroy();
  });
});
listener.listen(0, '127.0.0.1', () => {
  console.log(`listening on http://127.0.0.1:${listener.address().port}/mcp`);
});

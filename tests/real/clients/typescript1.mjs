// A client on the TypeScript SDK 1.x, of any of its releases: `typescript1.mjs SDK-DIRECTORY TARGET…`

import { METHODS, ROOT, main, sampled } from "./walk.mjs";

const [sdk, ...targets] = process.argv.slice(2);
const part = (name) => import(`${sdk}/dist/esm/client/${name}.js`);
const types = await import(`${sdk}/dist/esm/types.js`);
const { Client } = await part("index");
const { StdioClientTransport } = await part("stdio");
const { StreamableHTTPClientTransport } = await part("streamableHttp").catch(() => ({})); // since 2025-03-26

function transportTo(target) {
  if (target.url !== undefined) return new StreamableHTTPClientTransport(new URL(target.url));
  const [command, ...args] = target.command;
  return new StdioClientTransport({ command, args, stderr: "ignore" });
}

/** Hear which revision was agreed, for these SDKs do not say it. */
function listen(transport, hello) {
  const start = transport.start.bind(transport);
  transport.start = () => {
    const hear = transport.onmessage;
    transport.onmessage = (message, ...rest) => {
      hello.revision ??= message.result?.protocolVersion;
      hear(message, ...rest);
    };
    return start();
  };
}

async function connect(target) {
  const capabilities = { sampling: {}, roots: {} };
  if (types.ElicitRequestSchema !== undefined) capabilities.elicitation = {}; // since 2025-06-18
  const client = new Client({ name: "typescript1", version: "1" }, { capabilities });
  client.setRequestHandler(types.CreateMessageRequestSchema, ({ params }) => sampled(params));
  client.setRequestHandler(types.ListRootsRequestSchema, () => ({ roots: [ROOT] }));
  if (types.ElicitRequestSchema !== undefined) {
    client.setRequestHandler(types.ElicitRequestSchema, () => ({ action: "decline" }));
  }
  const transport = transportTo(target);
  const hello = {};
  listen(transport, hello);
  await client.connect(transport);
  hello.server = client.getServerVersion().name;
  hello.capabilities = client.getServerCapabilities();
  hello.instructions = client.getInstructions() ?? null;
  const ask = (method, params) => client[METHODS[method]](method === "ping" ? undefined : params);
  return { hello, ask, close: () => client.close() };
}

await main(connect, targets);

// A client on the TypeScript SDK 2.x, which speaks both eras: `typescript2.mjs SDK-DIRECTORY TARGET…`

import { METHODS, ROOT, main, sampled } from "./walk.mjs";

const [sdk, ...targets] = process.argv.slice(2);
const { Client, StreamableHTTPClientTransport } = await import(`${sdk}/dist/index.mjs`);
const { StdioClientTransport } = await import(`${sdk}/dist/stdio.mjs`);

function transportTo(target) {
  if (target.url !== undefined) return new StreamableHTTPClientTransport(new URL(target.url));
  const [command, ...args] = target.command;
  return new StdioClientTransport({ command, args, stderr: "ignore" });
}

async function connect(target) {
  const client = new Client(
    { name: "typescript2", version: "1" },
    {
      versionNegotiation: { mode: target.mode },
      capabilities: { sampling: {}, roots: {}, elicitation: {} },
    },
  );
  client.setRequestHandler("sampling/createMessage", ({ params }) => sampled(params));
  client.setRequestHandler("roots/list", () => ({ roots: [ROOT] }));
  client.setRequestHandler("elicitation/create", () => ({ action: "decline" }));
  await client.connect(transportTo(target));
  const hello = {
    revision: client.getNegotiatedProtocolVersion(),
    server: client.getServerVersion()?.name,
    capabilities: client.getServerCapabilities(),
    instructions: client.getInstructions() ?? null,
  };
  const ask = (method, params) => client[METHODS[method]](method === "ping" ? undefined : params);
  return { hello, ask, close: () => client.close() };
}

await main(connect, targets);

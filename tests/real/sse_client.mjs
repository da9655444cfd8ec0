// What the TypeScript SDK 1.x sees of servers over HTTP+SSE, one JSON document a line:
// `sse_client.mjs SDK-DIRECTORY http://127.0.0.1:8000/sse …`

const [sdk, ...urls] = process.argv.slice(2);
const part = (name) => import(`${sdk}/dist/esm/${name}.js`);
const types = await part("types");
const { Client } = await part("client/index");
const { SSEClientTransport } = await part("client/sse");

const DOCUMENT = "demo://resource/static/document/features.md";
const SAMPLED = { role: "assistant", content: { type: "text", text: "sampled" }, model: "m" };

async function see(url) {
  const capabilities = { sampling: {}, elicitation: {} };
  const client = new Client({ name: "sse", version: "1" }, { capabilities });
  const progress = [];
  client.setRequestHandler(types.CreateMessageRequestSchema, () => SAMPLED);
  client.setRequestHandler(types.ElicitRequestSchema, () => ({ action: "decline" }));
  const updated = new Promise((resolve) => {
    client.setNotificationHandler(types.ResourceUpdatedNotificationSchema, resolve);
  });
  const transport = new SSEClientTransport(new URL(url));
  let revision = null;
  transport.setProtocolVersion = (agreed) => { revision = agreed; };
  await client.connect(transport);
  // The SDK drops progress that arrives together with the answer, so it is noted before the SDK sees it.
  const { onmessage } = transport;
  transport.onmessage = (message) => {
    const { method, params } = message;
    if (method === "notifications/progress") progress.push([params.progress, params.total]);
    onmessage(message);
  };
  const options = { onprogress: () => {} }; // with it, the SDK asks for progress
  const call = (name, args) => client.callTool({ name, arguments: args }, undefined, options);
  const seen = {
    revision,
    tools: (await client.listTools()).tools,
    resources: (await client.listResources()).resources,
    templates: (await client.listResourceTemplates()).resourceTemplates,
    prompts: (await client.listPrompts()).prompts,
    contents: (await client.readResource({ uri: DOCUMENT })).contents,
    called: await call("trigger-long-running-operation", { duration: 0.05, steps: 2 }),
    progress: [...progress],
    sampled: await call("trigger-sampling-request", { prompt: "x", maxTokens: 5 }),
    declined: await call("trigger-elicitation-request", {}),
    pong: await client.ping(),
    error: await client.getPrompt({ name: "no-such-prompt" }).catch((error) => error.code),
  };
  await client.subscribeResource({ uri: DOCUMENT });
  await call("toggle-subscriber-updates", {});
  await updated;
  await call("toggle-subscriber-updates", {});
  await client.close();
  console.log(JSON.stringify(seen));
}

for (const url of urls) await see(url);
process.exit(0);

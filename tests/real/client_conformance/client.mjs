// The client of the conformance suite's scenarios, on the public API of the TypeScript SDK.
//
// Usage: client.mjs URL, with the suite's environment variables. Each scenario is what an application would
// do with the SDK; the suite judges what arrives at its own server. The SDK has such a client, but in no
// package, so this one is ours.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

const scenario = process.env.MCP_CONFORMANCE_SCENARIO;
const modern = process.env.MCP_CONFORMANCE_PROTOCOL_VERSION === '2026-07-28';
const context = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? '{}');
const url = new URL(process.argv[2]);

async function open(capabilities = {}, handlers = {}) {
    const options = modern ? { capabilities, versionNegotiation: { mode: 'auto' } } : { capabilities };
    const client = new Client({ name: 'conformance-client', version: '1.0.0' }, options);
    for (const [method, handler] of Object.entries(handlers)) client.setRequestHandler(method, handler);
    await client.connect(new StreamableHTTPClientTransport(url));
    return client;
}

async function list() {
    const client = await open();
    await client.listTools();
    return client;
}

async function call(name, args = {}) {
    const client = await list();
    await client.callTool({ name, arguments: args });
    return client;
}

// Everything that a client can be asked for is declared, and a request of its own follows the connection.
async function declareEverything() {
    const client = await open({ roots: { listChanged: true }, sampling: {}, elicitation: {} });
    await client.callTool({ name: 'add_numbers', arguments: { a: 5, b: 3 } });
    return client;
}

async function acceptDefaults() {
    const accept = async () => ({ action: 'accept', content: {} });
    const capabilities = { elicitation: { form: { applyDefaults: true } } };
    const client = await open(capabilities, { 'elicitation/create': accept });
    await client.listTools();
    await client.callTool({ name: 'test_client_elicitation_defaults', arguments: {} });
    return client;
}

async function visitEverything() {
    const client = await open();
    for (const { name } of (await client.listTools()).tools) await client.callTool({ name, arguments: {} });
    for (const { uri } of (await client.listResources()).resources) await client.readResource({ uri });
    for (const { name } of (await client.listPrompts()).prompts) await client.getPrompt({ name });
    return client;
}

async function makeTheCallsAskedFor() {
    const client = await list();
    for (const { name, arguments: args } of context.toolCalls) await client.callTool({ name, arguments: args });
    return client;
}

async function callEveryTool() {
    const client = await open();
    for (const { name } of (await client.listTools()).tools) {
        await client.callTool({ name, arguments: { region: 'us-west1' } });
    }
    return client;
}

async function answerWhatIsAsked() {
    const confirm = async () => ({ action: 'accept', content: { confirmed: true } });
    const client = await open({ elicitation: {} }, { 'elicitation/create': confirm });
    for (const name of ['test_mrtr_echo_state', 'test_mrtr_unrelated', 'test_mrtr_no_state']) {
        await client.callTool({ name, arguments: {} });
    }
    // The SDK may refuse a result without `resultType`; the suite only looks for a retry.
    await client.callTool({ name: 'test_mrtr_no_result_type', arguments: {} }).catch(() => {});
    return client;
}

async function echoASchema() {
    const client = await open();
    const { tools } = await client.listTools();
    const { inputSchema } = tools.find(({ name }) => name === 'json_schema_2020_12_tool');
    await client.callTool({ name: 'json_schema_echo', arguments: { schema: inputSchema } });
    return client;
}

const SCENARIOS = {
    initialize: list,
    tools_call: () => call('add_numbers', { a: 5, b: 3 }),
    'sse-retry': () => call('test_reconnection'),
    'elicitation-sep1034-client-defaults': acceptDefaults,
    'request-metadata': declareEverything,
    'http-standard-headers': visitEverything,
    'http-custom-headers': makeTheCallsAskedFor,
    'http-invalid-tool-headers': callEveryTool,
    'sep-2322-client-request-state': answerWhatIsAsked,
    'json-schema-ref-no-deref': list,
    'json-schema-2020-12-preservation': echoASchema
};

const client = await SCENARIOS[scenario]();
await client.close();

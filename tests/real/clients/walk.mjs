// The walk that every real client in TypeScript takes: the same as `walk.py`, which describes it.
//
// A program of an SDK has `connect(target)`, which gives `{hello, ask, close}`.

console.debug = console.error; // SDKs remark on this and that; standard output is for documents

const SECONDS = 60; // for the whole walk; a client that hangs should say so, not be killed
const METHOD_NOT_FOUND = -32601;
const MODERN = "2026-07-28";
const LISTS = {
  resources: ["resources/list", "resources"],
  templates: ["resources/templates/list", "resourceTemplates"],
  tools: ["tools/list", "tools"],
  prompts: ["prompts/list", "prompts"],
};

/** The client's method of the SDK that asks for an MCP method. */
export const METHODS = {
  "resources/list": "listResources",
  "resources/templates/list": "listResourceTemplates",
  "tools/list": "listTools",
  "prompts/list": "listPrompts",
  "resources/read": "readResource",
  "prompts/get": "getPrompt",
  "tools/call": "callTool",
  "completion/complete": "complete",
  "resources/subscribe": "subscribeResource",
  "resources/unsubscribe": "unsubscribeResource",
  ping: "ping",
};

/** The sampling result that a client gives: it repeats what it was asked. */
export function sampled(params) {
  const text = `asked '${params.messages[0].content.text}', ${params.maxTokens} tokens`;
  return { role: "assistant", model: "none", content: { type: "text", text } };
}

export const ROOT = { uri: "file:///the/only/root", name: "root" };

async function walkList(ask, method, member) {
  const items = [];
  let pages = 0;
  let params = {};
  while (pages === 0 || "cursor" in params) {
    let page;
    try {
      page = await ask(method, params);
    } catch (error) {
      if (error.code === METHOD_NOT_FOUND && pages === 0) return [[], 0];
      throw error;
    }
    items.push(...page[member]);
    pages += 1;
    params = page.nextCursor === undefined ? {} : { cursor: page.nextCursor };
  }
  return [items, pages];
}

async function answer(ask, method, params) {
  try {
    return await ask(method, params);
  } catch (error) {
    if (typeof error.code === "number") {
      return { error: { code: error.code, message: error.message, data: error.data ?? null } };
    }
    console.error(error);
    return { unreadable: error.constructor.name };
  }
}

/** Parameters to get a prompt, with something for each argument that is required. */
function madeUp(prompt) {
  const required = (prompt.arguments ?? []).filter((argument) => argument.required);
  return {
    name: prompt.name,
    arguments: Object.fromEntries(required.map(({ name }) => [name, `a ${name}`])),
  };
}

async function walk({ hello, ask }, target) {
  const seen = { ...hello, pages: {} };
  for (const [name, [method, member]] of Object.entries(LISTS)) {
    [seen[name], seen.pages[name]] = await walkList(ask, method, member);
  }
  if (target.read) {
    seen.contents = {};
    for (const { uri } of seen.resources) seen.contents[uri] = await answer(ask, "resources/read", { uri });
    seen.messages = {};
    for (const prompt of seen.prompts) {
      seen.messages[prompt.name] = await answer(ask, "prompts/get", madeUp(prompt));
    }
  }
  seen.answers = [];
  for (const [method, params] of target.asking) seen.answers.push(await answer(ask, method, params));
  if (hello.revision !== MODERN) seen.ping = await answer(ask, "ping", {});
  return seen;
}

/** See all targets side by side: one document a line, in the order of the targets. */
export async function main(connect, targets) {
  const late = setTimeout(() => {
    console.error(`the walk took longer than ${SECONDS} s`);
    process.exit(1);
  }, SECONDS * 1000);
  const documents = await Promise.all(
    targets.map(async (argument) => {
      const target = JSON.parse(argument);
      const client = await connect(target);
      const seen = await walk(client, target);
      await client.close();
      return seen;
    }),
  );
  clearTimeout(late);
  for (const seen of documents) console.log(JSON.stringify(seen));
}

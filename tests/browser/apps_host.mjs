// Serves the page of a host of MCP Apps: `apps_host.mjs NODE_MODULES`. The page itself connects to mcpmux, which
// has another origin.

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";

const [modules] = process.argv.slice(2);
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript" };

const server = createServer(async (asked, answer) => {
  const path = normalize(new URL(asked.url, "http://host").pathname);
  const file = path === "/" ? new URL("apps_host.html", import.meta.url) : join(modules, path);
  try {
    const content = await readFile(file);
    answer.writeHead(200, { "content-type": TYPES[extname(String(file))] ?? "text/plain" }).end(content);
  } catch {
    answer.writeHead(404).end();
  }
});
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}/`));

// Serves the page of a host of MCP Apps: `apps_host.mjs NODE_MODULES PORT-OF-MCPMUX`. What the page asks of /mcp
// goes to mcpmux, as from the backend of a host: mcpmux itself answers no pages of other origins.

import { readFile } from "node:fs/promises";
import { createServer, request } from "node:http";
import { extname, join, normalize } from "node:path";

const [modules, port] = process.argv.slice(2);
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript" };

const server = createServer(async (asked, answer) => {
  if (asked.url.startsWith("/mcp")) {
    const { origin, host, ...headers } = asked.headers;
    const { method, url: path } = asked;
    const passed = request({ host: "127.0.0.1", port, method, path, headers }, (response) => {
      answer.writeHead(response.statusCode, response.headers);
      response.pipe(answer);
    });
    passed.on("error", () => answer.destroy());
    answer.on("close", () => passed.destroy());
    asked.pipe(passed);
    return;
  }
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

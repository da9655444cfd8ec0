"""MCP peers for tests: clients and servers that share no decision with mcpmux, well-behaved or odd.

revision         the messages of a client of each revision
client           a client on a pipe; `strict_client` judges all its messages
server           a server on a pipe; `subscribable`, `task_server` and `strict_server` can do more
http_client      a client over HTTP that shows statuses, headers and events; `blocking_client`: without a loop
http_server      a server on a pipe as an HTTP endpoint; `sse_server`: over HTTP+SSE
web, raw_websocket  a web server and a WebSocket client that may break any rule
pipe, http_pipe, socket_pipe  what clients and servers send and receive on
"""

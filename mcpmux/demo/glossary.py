"""What the notes of the `notes` server say: the words of MCP and of mcpmux, one note each."""

from __future__ import annotations

WELCOME = """\
# Welcome

You are reading this through mcpmux: it started this server, found out which revision of the Model
Context Protocol it speaks, and put `notes+` in front of its URIs, so that many servers fit behind one
endpoint.

The other notes explain the words that are used here, one each. A few things to try:

* list everything that the three servers of the demo have
* read `library+book:///all`: four contents from one read, the last of them an image
* call `clock__now`: that server knows only an older revision, and you need not notice
* call `library__build_index`: it reports its progress
* call `notes__add_note`, then list again
"""

GLOSSARY = {
    "annotation": "A hint on a resource or a content block: for whom it is, how important, how fresh.",
    "capability": "What a server or a client says it can do. What is not declared must not be used.",
    "client": "The part of a host app that talks to one server.",
    "completion": "Suggestions for the value of an argument while it is being typed.",
    "content-block": "A piece of a tool's result or of a prompt: text, image, audio, or a resource.",
    "cursor": "An opaque text that asks for the next page of a list. Only the server understands it.",
    "discover": "The modern way to learn what a server speaks and offers: one request, no session.",
    "downstream": "Towards the clients: a host app that connects to mcpmux.",
    "elicitation": "A server asks the user, through the client, for something that it needs.",
    "era": "Modern is 2026-07-28, stateless; legacy is every revision before it, with sessions.",
    "host": "The application that the user sees, with a model inside and clients for its servers.",
    "initialize": "The legacy handshake: both sides agree on a revision, and a session begins.",
    "listen": "A request that stays open and brings the notifications that it asked for.",
    "multi-round-trip": "A result may be a question; the client answers it and sends the request again.",
    "multiplexer": "Many servers behind one endpoint, each reachable under its own prefix.",
    "notification": "A message that expects no answer.",
    "page": "A part of a list, with the cursor of the next part.",
    "prefix": "`name+` before a URI, `name__` before a tool: it says which server is meant.",
    "progress": "How far a long request has come, told while it runs to whoever gave a token.",
    "prompt": "A template of messages that the user picks, filled in by the server.",
    "resource": "Something that can be read, named by a URI.",
    "revision": "A dated version of the protocol; mcpmux knows five.",
    "roots": "The places in the file system that a client lets a server work in.",
    "sampling": "A server asks, through the client, for the words of a model.",
    "session": "What a legacy client and server share from `initialize` on.",
    "stdio": "A transport: one JSON message a line on the standard input and output of a process.",
    "structured-content": "The result of a tool as JSON that follows the schema the tool declared.",
    "tool": "A function that the model may call.",
    "upstream": "Towards the servers: an MCP server that mcpmux connects to.",
}

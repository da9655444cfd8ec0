"""Every peer that is compared, by name: first those that aggregate, then the bridges."""

from __future__ import annotations

from benchmarks.peers import context_forge, envoy, fast_mcp, mcp_hub, mcp_proxy, one_mcp, supergateway

_ALL = (
    mcp_hub.PEER,
    one_mcp.PEER,
    fast_mcp.PEER,
    context_forge.PEER,
    envoy.PEER,
    supergateway.PEER,
    mcp_proxy.PEER,
)
PEERS = {peer.name: peer for peer in _ALL}

"""The kinds of interceptors. `mux/intercept` has the laws of messages and verdicts."""

"""The kinds of interceptors. `mux/intercept` defines the messages and verdicts."""

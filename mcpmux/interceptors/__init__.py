"""The kinds of interceptors; `mcpmux/mux/intercept` says what they see and decide."""

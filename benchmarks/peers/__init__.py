"""Other proxies, installed from the registries and measured beside mcpmux in the same run."""

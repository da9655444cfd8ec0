"""Host apps on this machine: what is in their configuration, and how to change it. No server is asked.

`place` says where their files are, `entry` how each of them says a server. `gathering`, `secrecy` and
`rendering` make one configuration of ours of what they say. `document` changes one entry of a file and keeps
all other text; `jsonc_text`, `toml_text` and `yaml_text` each know one format. `installing` puts mcpmux
itself into a host app and takes it out again, and `writing` is how files are replaced.
"""

"""Read the configuration of host apps on this machine, and change it. No server is contacted.

`host` knows the host apps and finds their files, `entry` reads their forms of a server. `importing` makes one
configuration of ours of them, without the secrets that `secrecy` moves. `document` changes one entry of a
file and keeps all other text; `jsonc_text`, `toml_text` and `yaml_text` each know one format. `installing`
puts mcpmux itself into a host app and takes it out again.
"""

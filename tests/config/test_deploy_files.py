"""The files of configs/deploy are valid, each for itself, and fit together. Expressions: `test_dashboard`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from mcpmux.app.mux import STOP_LADDER
from mcpmux.app.serving import DRAIN_SECONDS
from mcpmux.cli.serve import serve
from mcpmux.config import Config
from mcpmux.config.schema import config_schema
from mcpmux.hosts.configuration import read_config
from mcpmux.traffic.audit.opening import FLUSH_SECONDS
from mcpmux.transports.process import KILL_SECONDS
from tests.config.test_cluster_files import admin_paths, seconds
from tests.real.parts import program

FOLDER = Path(__file__).parents[2] / "configs" / "deploy"
CREDENTIALS = "/run/credentials/mcpmux.service"
LADDER_SECONDS = STOP_LADDER.close_seconds + STOP_LADDER.terminate_seconds + KILL_SECONDS
STOP_SECONDS = DRAIN_SECONDS + LADDER_SECONDS + FLUSH_SECONDS  # for requests, servers and the audit log
MOST_EXPOSED = 20  # of `systemd-analyze security`: 100 would be a service without any confinement


def text_of(name: str) -> str:
    return (FOLDER / name).read_text()


def secrets() -> set[str]:
    """Return the secrets that mux.toml reads."""
    return set(re.findall(rf"\$\{{file:{CREDENTIALS}/(\w+)\}}", text_of("mux.toml")))


def read_mux(folder: Path, environ: dict[str, str]) -> Config:
    """Read the configuration, with secrets in this folder."""
    for name in secrets():
        (folder / name).write_text("5" * 64 + "\n")
    text = text_of("mux.toml").replace(CREDENTIALS, str(folder))
    return read_config("-", environ, text.encode)


@cache
def compose() -> Any:
    return yaml.safe_load(text_of("compose.yaml"))


@cache
def kubernetes() -> dict[tuple[str, str], Any]:
    """Return the objects by their kinds and names."""
    return {
        (document["kind"], document["metadata"]["name"]): document
        for document in yaml.safe_load_all(text_of("kubernetes.yaml"))
    }


def pod() -> Any:
    return kubernetes()["Deployment", "mcpmux"]["spec"]["template"]["spec"]


def container() -> Any:
    (only,) = pod()["containers"]
    return only


@cache
def unit() -> dict[str, list[str]]:
    """Return the settings of the unit's section [Service]."""
    settings = defaultdict[str, list[str]](list)
    section = text_of("mcpmux.service").partition("\n[Service]\n")[2].partition("\n[Install]\n")[0]
    for line in section.splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            settings[key].append(value)
    return dict(settings)


def setting(key: str) -> str:
    (value,) = unit()[key]
    return value


def blocks_of_readme() -> str:
    return "".join(re.findall(r"^```sh\n(.*?)^```", text_of("README.md"), re.DOTALL | re.MULTILINE))


# ── mux.toml ────────────────────────────────────────────────────────────────────────────────────────


def test_it_is_what_the_schema_describes():
    document = tomllib.loads(text_of("mux.toml"))
    Draft202012Validator(json.loads(json.dumps(config_schema()))).validate(document)


def test_it_listens_on_this_machine_unless_it_is_told_otherwise(tmp_path: Path):
    config = read_mux(tmp_path, {})
    assert [listener.address for listener in config.listeners.http] == ["127.0.0.1:8484"]
    assert config.admin.host == "127.0.0.1"
    assert config.logging.format == "json"
    config = read_mux(tmp_path, {"LISTEN": "0.0.0.0"})
    assert (config.listeners.http[0].host, config.admin.host) == ("0.0.0.0", "0.0.0.0")


def test_the_head_of_the_file_names_every_secret():
    head = text_of("mux.toml").partition("\n\n")[0]
    assert secrets() == set(re.findall(r"^#     (\w+) {3,}", head, re.MULTILINE))


def test_secrets_are_made_and_found_everywhere():
    kept = {source for source, _ in mounted_secrets("mcpmux")}
    loaded = {value.partition(":")[0] for value in unit()["LoadCredential"]}
    documented = set(re.findall(r"--from-file=secrets/(\w+)", blocks_of_readme()))
    assert secrets() == kept == loaded == documented
    made = re.search(r"for name in (.*); do", blocks_of_readme())
    assert made is not None
    assert secrets() | compose()["secrets"].keys() <= {*made[1].split(), "client_token_sha256"}


# ── Containerfile ───────────────────────────────────────────────────────────────────────────────────


def test_the_image_asks_whether_it_is_ready(tmp_path: Path):
    (request,) = re.findall(r"http://127\.0\.0\.1:(\d+)(/[\w/]+)", text_of("Containerfile"))
    assert request[0] == str(read_mux(tmp_path, {}).admin.port)
    assert request[1] in admin_paths()


def test_the_builder_gets_what_is_copied_and_nothing_else():
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text_of("Containerfile"), re.MULTILINE)
    let_in = re.findall(r"^!(.+)$", text_of("Containerfile.dockerignore"), re.MULTILINE)
    assert set(" ".join(copied).split()) == set(let_in)
    assert all((FOLDER.parents[1] / name).exists() for name in let_in)


def test_the_user_of_the_image_may_write_the_audit_log(tmp_path: Path):
    (user, group) = re.findall(r"^USER (\d+):(\d+)$", text_of("Containerfile"), re.MULTILINE)[0]
    folder = PurePosixPath(read_mux(tmp_path, {}).audit.directory or "").parent
    assert f"install -d -o {user} -g {group} -m 700 {folder}\n" in text_of("Containerfile")
    context = pod()["securityContext"]
    assert {context["runAsUser"], context["runAsGroup"], context["fsGroup"]} == {int(user)}
    assert f"audit:{folder}" in compose()["services"]["mcpmux"]["volumes"]
    assert {"name": "audit", "mountPath": str(folder)} in container()["volumeMounts"]


# ── compose.yaml ────────────────────────────────────────────────────────────────────────────────────


def mounted_secrets(service: str) -> set[tuple[str, str]]:
    """Return the secrets of a service, and their places in the container."""
    return {
        (secret, f"/run/secrets/{secret}")
        if isinstance(secret, str)
        else (secret["source"], secret["target"])
        for secret in compose()["services"][service]["secrets"]
    }


def test_secrets_are_mounted_where_they_are_looked_for():
    assert mounted_secrets("mcpmux") == {(name, f"{CREDENTIALS}/{name}") for name in secrets()}
    (job,) = yaml.safe_load(text_of("prometheus.yml"))["scrape_configs"]
    assert mounted_secrets("prometheus") == {("admin_token", job["authorization"]["credentials_file"])}
    password = compose()["services"]["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"]
    assert mounted_secrets("grafana") == {("grafana_password", password)}


def test_ports_are_open_on_this_machine_only(tmp_path: Path):
    config = read_mux(tmp_path, compose()["services"]["mcpmux"]["environment"])
    assert {config.listeners.http[0].host, config.admin.host} == {"0.0.0.0"}
    ports = [f"127.0.0.1:{port}:{port}" for port in (config.listeners.http[0].port, config.admin.port)]
    assert compose()["services"]["mcpmux"]["ports"] == ports
    published = [port for service in compose()["services"].values() for port in service["ports"]]
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_prometheus_and_grafana_find_what_they_ask(tmp_path: Path):
    (job,) = yaml.safe_load(text_of("prometheus.yml"))["scrape_configs"]
    port = read_mux(tmp_path, {}).admin.port
    assert job["static_configs"] == [{"targets": [f"mcpmux:{port}"]}]
    (source,) = yaml.safe_load(text_of("grafana/datasources.yaml"))["datasources"]
    published = compose()["services"]["prometheus"]["ports"][0].rpartition(":")[2]
    assert source["url"] == f"http://prometheus:{published}"
    (provider,) = yaml.safe_load(text_of("grafana/dashboards.yaml"))["providers"]
    grafana = compose()["services"]["grafana"]
    home = PurePosixPath(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == provider["options"]["path"]
    assert f"./grafana/mcpmux.json:{home}:ro" in grafana["volumes"]


def test_every_file_that_is_mounted_is_there():
    mounts = [mount for service in compose()["services"].values() for mount in service["volumes"]]
    sources = [source for source, *_ in (mount.split(":") for mount in mounts)]
    files = [source for source in sources if source.startswith("./")]
    assert len(files) == 6
    assert all((FOLDER / file).is_file() for file in files)
    assert set(sources) - set(files) == set(compose()["volumes"])


def test_a_container_has_time_to_stop():
    assert seconds(compose()["services"]["mcpmux"]["stop_grace_period"]) > STOP_SECONDS


# ── kubernetes.yaml ─────────────────────────────────────────────────────────────────────────────────


def test_kubernetes_starts_the_image_with_what_it_needs(tmp_path: Path):
    assert container()["image"] == compose()["services"]["mcpmux"]["image"]
    assert json.dumps(container()["args"]) in text_of("Containerfile")
    config = read_mux(tmp_path, {variable["name"]: variable["value"] for variable in container()["env"]})
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert ports == {"http": config.listeners.http[0].port, "admin": config.admin.port}
    assert CREDENTIALS in {mount["mountPath"] for mount in container()["volumeMounts"]}
    mounted = {mount["name"] for mount in container()["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod()["volumes"]}


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_probes_ask_what_the_admin_listener_shows(probe: str):
    request = container()[probe]["httpGet"]
    assert request["port"] == "admin"
    assert request["path"] in admin_paths()


def test_a_pod_has_time_to_stop():
    command = container()["lifecycle"]["preStop"]["exec"]["command"]
    assert command[0] == "sleep"
    assert pod()["terminationGracePeriodSeconds"] > float(command[1]) + STOP_SECONDS


def test_services_lead_to_the_pod():
    deployment = kubernetes()["Deployment", "mcpmux"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels
    names = {port["name"]: port["containerPort"] for port in container()["ports"]}
    for name in ("mcpmux", "mcpmux-admin"):
        service = kubernetes()["Service", name]["spec"]
        assert service["selector"] == labels
        assert all(names[port["targetPort"]] == port["port"] for port in service["ports"])
    assert deployment["replicas"] == 1
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod()["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    assert [("PersistentVolumeClaim", claim) in kubernetes() for claim in claims] == [True]


# ── mcpmux.service ──────────────────────────────────────────────────────────────────────────────────


def test_the_unit_starts_mcpmux_with_options_that_it_has():
    _, command, path, *options = setting("ExecStart").split()
    assert (command, path) == ("serve", "/etc/mcpmux/mux.toml")
    options_of_serve = {option for parameter in serve.params for option in parameter.opts}
    assert options
    assert set(options) <= options_of_serve


def test_the_unit_needs_no_program_that_a_minimal_system_lacks():
    programs = {setting(name).split()[0] for name in ("ExecStart", "ExecReload")}
    assert programs == {"/opt/mcpmux/bin/mcpmux", "/bin/sh"}
    assert setting("ExecReload") == "/bin/sh -c 'kill -HUP $MAINPID'"  # `kill` is one of procps


def test_the_unit_gives_mcpmux_the_time_that_it_takes_to_stop():
    assert setting("KillMode") == "mixed"  # else servers end before the requests that they work on
    assert float(setting("TimeoutStopSec")) > STOP_SECONDS


def test_the_unit_may_write_what_is_configured(tmp_path: Path):
    config = read_mux(tmp_path, {})
    assert config.audit.directory is not None
    assert Path(config.audit.directory).is_relative_to(f"/var/log/{setting('LogsDirectory')}")


@pytest.mark.process
def test_systemd_accepts_the_unit(tmp_path: Path):
    path = tmp_path / "mcpmux.service"
    path.write_text(text_of(path.name).replace("/opt/mcpmux/bin/mcpmux", sys.executable))
    done = analyze("verify", "--man=no", str(path))
    assert [line for line in done.stderr.splitlines() if "mcpmux" in line] == []  # others may have mistakes
    assert done.returncode == 0


@pytest.mark.process
def test_systemd_holds_the_unit_for_confined():
    path = str(FOLDER / "mcpmux.service")
    done = analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED}", path)
    assert done.returncode == 0, done.stdout


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [program("systemd-analyze", "systemd"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

"""The files of configs/cluster are valid, each for itself, and fit together."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml
from jsonschema import Draft202012Validator

from benchmarks.process import free_port
from mcpmux.app.serving import DRAIN_SECONDS
from mcpmux.config import Config, Limits
from mcpmux.config.model import Upstream
from mcpmux.config.schema import config_schema
from mcpmux.hosts.configuration import read_config
from mcpmux.traffic.admin.api import Api
from tests.real.parts import program

FOLDER = Path(__file__).parents[2] / "configs" / "cluster"
SECRETS = {
    "STORE_PASSWORD": "p" * 64,
    "CURSOR_KEY": "c" * 64,
    "ADMIN_TOKEN": "a" * 64,
    "CLIENT_TOKEN_SHA256": "5" * 64,
}
START_SECONDS = 30.0  # of a Redis, on a busy machine


def text_of(name: str) -> str:
    return (FOLDER / name).read_text()


def without_comments(name: str) -> str:
    return re.sub(r"^\s*#.*$", "", text_of(name), flags=re.MULTILINE)


def variables(*, required: bool = False) -> set[str]:
    """Return the environment variables of mux.toml, or those without a default if they are `required`."""
    references = re.findall(r"\$\{(\w+)(:-[^}]*)?\}", without_comments("mux.toml"))
    return {name for name, default in references if not (required and default)}


def read_mux(environ: dict[str, str]) -> Config:
    """Read the configuration of a replica with this environment."""
    return read_config(str(FOLDER / "mux.toml"), environ, lambda: b"")


@cache
def admin_paths() -> frozenset[str]:
    """Return the paths of the admin listener that need no token."""
    api = Api(None, None, None, None, "any", "")  # type: ignore[arg-type]  # routes need none of them
    return frozenset(route.path for route in api.routes if route.open)


@cache
def compose() -> Any:
    return yaml.safe_load(text_of("compose.yaml"))


@cache
def kubernetes() -> dict[str, Any]:
    """Return the objects by their kinds."""
    return {document["kind"]: document for document in yaml.safe_load_all(text_of("kubernetes.yaml"))}


def pod() -> Any:
    return kubernetes()["Deployment"]["spec"]["template"]["spec"]


def container() -> Any:
    (only,) = pod()["containers"]
    return only


def seconds(text: str) -> float:
    assert text.endswith("s")
    return float(text.removesuffix("s"))


def kept_secrets() -> set[str]:
    """Return the variables that the README writes into mcpmux.env."""
    block = re.search(r"<< END\n(.*?)^END$", text_of("README.md"), re.DOTALL | re.MULTILINE)
    assert block is not None
    return {line.partition("=")[0] for line in block[1].splitlines()}


# ── mux.toml ────────────────────────────────────────────────────────────────────────────────────────


def test_replicas_need_a_few_variables_only():
    environ = {name: SECRETS.get(name, "8500") for name in variables(required=True)} | {"REPLICA": "a"}
    config = read_mux(environ)
    assert [listener.address for listener in config.listeners.http] == ["127.0.0.1:8500"]
    assert config.cluster.listener.url == "http://127.0.0.1:8500"
    assert {upstream.name for upstream in config.upstreams} == {"notes", "clock", "library"}


def test_the_head_of_the_file_names_every_variable():
    comments = "".join(re.findall(r"^#.*\n", text_of("mux.toml"), re.MULTILINE))
    assert {name for name in variables() if not re.search(rf"\b{name}\b", comments)} == set()


def test_it_is_what_the_schema_describes():
    document = tomllib.loads(text_of("mux.toml"))
    Draft202012Validator(json.loads(json.dumps(config_schema()))).validate(document)


def test_secrets_are_made_for_every_variable_that_is_one():
    assert set(SECRETS) == kept_secrets() - {"CLIENT_TOKEN"}
    assert set(SECRETS) <= variables()


# ── haproxy.cfg ─────────────────────────────────────────────────────────────────────────────────────


def haproxy_defaults() -> dict[str, str]:
    return dict(re.findall(r"\$\{(\w+)-([^}]*)\}", without_comments("haproxy.cfg")))


@pytest.mark.process
@pytest.mark.parametrize("environ", ["", "compose"])
def test_haproxy_accepts_its_file(environ: str, tmp_path: Path):
    more = compose()["services"]["haproxy"]["environment"] if environ else {}
    env = {**more, "SOCKET": str(tmp_path / "haproxy.sock")}
    command = [program("haproxy"), "-c", "-f", str(FOLDER / "haproxy.cfg")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert [line for line in warnings if "could not resolve" not in line] == []  # the names of containers


def test_haproxy_asks_the_replicas_of_the_readme():
    replicas = re.findall(
        r"REPLICA=(\w) PORT=(\d+) ADMIN_PORT=(\d+) REPLICA_PORT=(\d+) ", text_of("README.md")
    )
    assert [name for name, *_ in replicas] == ["a", "b", "c"]
    assert len({port for _, *ports in replicas for port in ports}) == 9
    defaults = haproxy_defaults()
    for name, port, admin_port, _ in replicas:
        assert defaults[f"REPLICA_{name.upper()}"] == f"127.0.0.1:{port}"
        assert defaults[f"ADMIN_{name.upper()}"] == admin_port


def test_haproxy_checks_what_the_admin_listener_shows():
    (path,) = re.findall(r"http-check send meth GET uri (\S+)", text_of("haproxy.cfg"))
    assert path in admin_paths()


def test_haproxy_waits_for_whatever_mcpmux_waits_for():
    minutes = dict(re.findall(r"^ +timeout (client|server) (\d+)m$", text_of("haproxy.cfg"), re.MULTILINE))
    longest = Upstream.__attrs_attrs__.max_request_timeout.default
    assert longest is not None
    assert {name: int(value) * 60 > longest for name, value in minutes.items()} == {
        "client": True,
        "server": True,
    }


def test_haproxy_opens_fewer_connections_than_a_listener_takes():
    (most,) = re.findall(r"default-server .*\bmaxconn (\d+)", text_of("haproxy.cfg"))
    assert int(most) < Limits().max_connections


# ── redis.conf ──────────────────────────────────────────────────────────────────────────────────────


def redis_settings() -> dict[str, str]:
    return dict(re.findall(r"^(\S+) (.*)$", without_comments("redis.conf"), re.MULTILINE))


@pytest.mark.process
async def test_redis_starts_with_its_file_and_a_password_from_standard_input(tmp_path: Path):
    port = free_port()
    command = [program("redis-server"), str(FOLDER / "redis.conf"), "--port", str(port), "-"]
    with trio.fail_after(START_SECONDS):
        async with trio.open_nursery() as nursery:
            process = await nursery.start(run_redis, command, tmp_path)
            output = b""
            while b"Ready to accept connections" not in output:
                chunk = await process.stdout.receive_some()
                assert chunk, output.decode()
                output += chunk
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(b"PING\r\nAUTH secret\r\nCONFIG GET maxmemory-policy\r\n")
                answers = b""
                while b"noeviction" not in answers:
                    chunk = await stream.receive_some()
                    assert chunk, answers.decode()
                    answers += chunk
            assert answers.startswith(b"-NOAUTH")
            nursery.cancel_scope.cancel()


async def run_redis(
    command: list[str], folder: Path, task_status: trio.TaskStatus[trio.Process] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run a Redis until cancelled, whose password is "secret"."""
    options: Any = {"stdin": b"requirepass secret\n", "cwd": folder, "capture_stdout": False}
    await trio.run_process(command, stdout=subprocess.PIPE, task_status=task_status, **options)


def test_redis_is_where_replicas_look_for_it():
    url = re.search(r"STORE_URL:-redis://([\d.]+):(\d+)/0\}", text_of("mux.toml"))
    assert url is not None
    assert url.groups() == (redis_settings()["bind"], redis_settings()["port"])


# ── compose.yaml ────────────────────────────────────────────────────────────────────────────────────


def replica_services() -> dict[str, Any]:
    return {name: service for name, service in compose()["services"].items() if name.startswith("mcpmux-")}


def environ_of(service: Any) -> dict[str, str]:
    """Return the environment of a service when mcpmux.env has the secrets."""
    written = re.compile(r"\$\{(\w+):\?[^}]*\}")
    environ = service["environment"]
    return {name: written.sub(lambda match: SECRETS[match[1]], value) for name, value in environ.items()}


@pytest.mark.parametrize("name", ["mcpmux-a", "mcpmux-b", "mcpmux-c"])
def test_compose_sets_what_a_replica_needs(name: str):
    service = replica_services()[name]
    environ = environ_of(service)
    assert variables(required=True) <= set(environ) <= variables()
    config = read_mux(environ)
    assert config.cluster.listener.url == f"http://{name}:{config.cluster.listener.port}"
    assert f":{config.admin.port}/health/ready" in service["healthcheck"]["test"][-1]
    assert "/health/ready" in admin_paths()
    assert seconds(service["stop_grace_period"]) > DRAIN_SECONDS


def test_replicas_of_compose_differ_in_their_names_only():
    a, *others = (environ_of(service) for service in replica_services().values())
    for other in others:
        assert {name for name in a if a[name] != other[name]} == {"REPLICA", "REPLICA_HOST"}


def test_haproxy_of_compose_asks_its_replicas():
    environ = compose()["services"]["haproxy"]["environment"]
    assert set(environ) == set(haproxy_defaults())
    for name, service in replica_services().items():
        letter, config = name[-1].upper(), read_mux(environ_of(service))
        assert environ[f"REPLICA_{letter}"] == f"{name}:{config.listeners.http[0].port}"
        assert environ[f"ADMIN_{letter}"] == str(config.admin.port)
    (published,) = compose()["services"]["haproxy"]["ports"]
    assert published.rpartition(":")[2] == environ["BIND"].removeprefix(":")


def test_redis_of_compose_is_where_its_replicas_look_for_it():
    service = compose()["services"]["redis"]
    port = redis_settings()["port"]
    assert f"-p {port} " in service["healthcheck"]["test"][-1]
    for replica in replica_services().values():
        assert environ_of(replica)["STORE_URL"] == f"redis://redis:{port}/0"
    assert set(service["environment"]) == {"STORE_PASSWORD"}


def test_every_file_that_compose_mounts_is_there():
    mounts = [mount for service in compose()["services"].values() for mount in service["volumes"]]
    files = [source for source, *_ in (mount.split(":") for mount in mounts) if source.startswith("./")]
    assert {Path(file).name for file in files} == {"mux.toml", "haproxy.cfg", "redis.conf"}
    assert all((FOLDER / file).is_file() for file in files)


def test_the_image_has_what_compose_and_kubernetes_start():
    assert container()["image"] == compose()["services"]["mcpmux-a"]["image"]
    assert container()["args"] == compose()["services"]["mcpmux-a"]["command"]
    image = (FOLDER.parent / "deploy" / "Containerfile").read_text()
    assert json.dumps(container()["args"]) in image
    (user,) = re.findall(r"^USER (\d+):(\d+)$", image, re.MULTILINE)
    assert tuple(map(int, user)) == (
        pod()["securityContext"]["runAsUser"],
        pod()["securityContext"]["runAsGroup"],
    )


# ── kubernetes.yaml ─────────────────────────────────────────────────────────────────────────────────

FIELDS = {"metadata.name": "mcpmux-7d9f8c6b5d-x2x4z", "status.podIP": "10.1.2.3"}


def pod_environ() -> dict[str, str]:
    environ = {}
    for variable in container()["env"]:
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            environ[variable["name"]] = FIELDS[source["fieldRef"]["fieldPath"]]
        elif "secretKeyRef" in source:
            environ[variable["name"]] = SECRETS[source["secretKeyRef"]["key"]]
        else:
            environ[variable["name"]] = variable["value"]
    return environ


def test_kubernetes_sets_what_a_replica_needs():
    environ = pod_environ()
    assert variables(required=True) <= set(environ) <= variables()
    config = read_mux(environ)
    assert config.cluster.listener.url == "http://10.1.2.3:8490"
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert ports == {
        "http": config.listeners.http[0].port,
        "replicas": config.cluster.listener.port,
        "admin": config.admin.port,
    }


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_probes_ask_what_the_admin_listener_shows(probe: str):
    request = container()[probe]["httpGet"]
    assert request["port"] == "admin"
    assert request["path"] in admin_paths()


def test_a_pod_has_time_to_drain():
    command = container()["lifecycle"]["preStop"]["exec"]["command"]
    assert command[0] == "sleep"
    assert pod()["terminationGracePeriodSeconds"] > float(command[1]) + DRAIN_SECONDS


def test_all_objects_are_about_the_same_pods():
    deployment = kubernetes()["Deployment"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels
    assert kubernetes()["Service"]["spec"]["selector"] == labels
    assert kubernetes()["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert kubernetes()["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert kubernetes()["PodDisruptionBudget"]["spec"]["maxUnavailable"] < deployment["replicas"]


def test_what_is_mounted_in_a_pod_is_a_volume_of_it():
    mounted = {mount["name"] for mount in container()["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod()["volumes"]}

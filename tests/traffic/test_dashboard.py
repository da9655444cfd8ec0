"""The dashboard and alerts of configs/deploy query only metrics and labels that mcpmux exports."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from mcpmux.app.observers import open_observers
from mcpmux.config import Admin, Audit, Capture, Config, Limits
from mcpmux.config.model import RateLimit
from mcpmux.errors import Refused
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic import outcome
from mcpmux.traffic.telemetry import metrics
from mcpmux.traffic.telemetry.prometheus import render
from tests.cluster.replicas import open_replicas
from tests.peers.server import RpcFailure, ScriptedServer
from tests.runtime.world import open_world, upstream

EXCHANGES = "mcpmux_exchanges_total"
REVISION = "2025-11-25"
COLUMNS = 24  # of a dashboard
FOLDER = Path(__file__).parents[2] / "configs" / "deploy"
TARGET_LABELS = frozenset({"job", "instance"})  # Prometheus adds them to everything that it collects
OF_PROMETHEUS = {
    "up": TARGET_LABELS,
    "ALERTS": TARGET_LABELS | {"alertname", "alertstate", "severity", "upstream"},
}
# Words of `outcome_of`: for errors by their codes, for a result, a refusal, and a failure of mcpmux.
ENDS: tuple[Fields | BaseException, ...] = ({}, Refused(-32602, "x", "rule"), OSError())
OUTCOMES = {*outcome.CODES.values(), *(outcome.outcome_of("ping", end) for end in ENDS)}
VALUES: Mapping[str, Set[str]] = {"outcome": OUTCOMES, "method": metrics.METHODS}
NOT_SHOWN = {"mcpmux_upstream_connects_total", "mcpmux_cache_entries"}  # reconnects and bytes say more
METRICS = ("mcpmux_", "ALERTS", "up")


class Asked(NamedTuple):
    """An expression and where it stands; `shown`: the labels in its legend."""

    where: str
    expression: str
    shown: frozenset[str]


@cache
def dashboard() -> Any:
    return json.loads((FOLDER / "grafana" / "mcpmux.json").read_text())


@cache
def alerts() -> dict[str, Any]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def shown_in(text: str) -> frozenset[str]:
    """Return the labels in a legend of Grafana, or in a text of an alert."""
    return frozenset(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text))


def asked() -> Iterator[Asked]:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield Asked(panel["title"], target["expr"], shown_in(target["legendFormat"]))
    for item in dashboard()["annotations"]["list"]:
        yield Asked(item["name"], item["expr"], shown_in(item["titleFormat"] + item["textFormat"]))
    for name, rule in alerts().items():
        yield Asked(name, rule["expr"], shown_in("".join(rule["annotations"].values())))


ASKED = list(asked())


class Selector(NamedTuple):
    """Samples that are asked for; `matchers`: (label, sign, value)."""

    metric: str
    matchers: list[tuple[str, str, str]]


GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
NO_METRIC = re.compile(r"\[[^]]*\]|\boffset\s+\w+|\b(?:and|or|unless|bool)\b")
SELECTOR = re.compile(r"\b([A-Za-z_]\w*)(?:\{([^}]*)\})?(?!\w|\s*[({])")  # no function, which has parentheses
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')


def selectors_in(expression: str) -> list[Selector]:
    """Return what an expression of PromQL asks for."""
    rest = NO_METRIC.sub("", GROUPING.sub("", expression))
    selectors = [Selector(metric, MATCHER.findall(matchers)) for metric, matchers in SELECTOR.findall(rest)]
    assert selectors, expression
    return selectors


def groups_in(expression: str) -> frozenset[str]:
    """Return the labels by which an expression groups or joins."""
    return frozenset(label for labels in GROUPING.findall(expression) for label in re.findall(r"\w+", labels))


# ── What mcpmux tells ───────────────────────────────────────────────────────────────────────────────


async def tell(folder: Path) -> str:
    """Return `/metrics` of a replica with everything turned on, after some traffic."""
    config = Config(
        upstreams=(upstream("docs"),),
        admin=Admin(port=0),
        audit=Audit(directory=str(folder / "audit")),
        capture=Capture(directory=str(folder / "capture"), level="metadata"),
    )
    limits = Limits(rate=(RateLimit(requests=2, per=3600.0),))
    async with (
        open_observers(config) as observers,
        open_replicas(a=ScriptedServer(tools=[])) as replicas,
        open_world({"docs": ScriptedServer(REVISION, tools=[])}, tap=observers.tap, limits=limits) as world,
    ):
        await world.mux.upstreams.settled(legacy=False)
        client = world.client()
        await client.initialize(REVISION)
        for _ in range(2):
            await client.request("tools/list")
        with pytest.raises(RpcFailure, match="Busy"):
            await client.request("tools/list")
        shown = observers.shown_of(world.mux, replicas["a"].node)
        return render(await shown.read_metrics()).decode()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    """Return every sample that Prometheus gets."""
    text = trio.run(tell, tmp_path_factory.mktemp("told"))
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


@pytest.fixture(scope="module")
def series(told: list[Sample]) -> dict[str, frozenset[str]]:
    """Return the labels of every series that can be asked for, by its name."""
    return OF_PROMETHEUS | {sample.name: TARGET_LABELS | sample.labels.keys() for sample in told}


def test_what_a_limit_refuses_is_counted_as_busy(told: list[Sample]):
    outcomes = Counter[str]()
    for sample in told:
        if sample.name == EXCHANGES and sample.labels["method"] == "tools/list":
            outcomes[sample.labels["outcome"]] += int(sample.value)
    assert outcomes == {"ok": 2, "busy": 1}


# ── What is asked for ───────────────────────────────────────────────────────────────────────────────


def test_what_is_asked_for_is_told(series: dict[str, frozenset[str]], subtests: pytest.Subtests):
    for query in ASKED:
        with subtests.test(query.where):
            selectors, groups = selectors_in(query.expression), groups_in(query.expression)
            assert {metric for metric, _ in selectors} <= series.keys()
            for metric, matchers in selectors:
                assert {label for label, _, _ in matchers} <= series[metric]
            everywhere = frozenset[str]().union(*(series[metric] for metric, _ in selectors))
            assert groups <= everywhere
            # A comparison keeps the labels of its left side, an aggregation those of its groups.
            is_plain = query.expression.startswith(METRICS)
            assert query.shown <= (everywhere if is_plain or not groups else groups)


def test_what_labels_are_compared_with_is_a_value_of_theirs(subtests: pytest.Subtests):
    for query in ASKED:
        for selector in selectors_in(query.expression):
            for label, sign, value in selector.matchers:
                with subtests.test(query.where, label=label):
                    if label in VALUES:
                        assert set(value.split("|") if "~" in sign else [value]) <= VALUES[label]
                    elif value.startswith("$"):
                        assert (sign, value) == ("=~", f"${label}")
                        assert label in {item["name"] for item in dashboard()["templating"]["list"]}


def test_every_metric_is_shown(series: dict[str, frozenset[str]]):
    shown = {selector.metric for query in ASKED for selector in selectors_in(query.expression)}
    assert {metric_of(name) for name in series} - {metric_of(name) for name in shown} == NOT_SHOWN


def metric_of(series: str) -> str:
    return re.sub(r"_(bucket|sum|count)$", "", series)


def test_variables_ask_for_what_is_told(series: dict[str, frozenset[str]]):
    queries = [
        item["query"]["query"] for item in dashboard()["templating"]["list"] if item["type"] == "query"
    ]
    assert queries
    for query in queries:
        match = re.fullmatch(r"label_values\((\w+), (\w+)\)", query)
        assert match is not None
        assert match[2] in series[match[1]]


def test_panels_have_places_of_their_own():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set[tuple[int, int]]()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < COLUMNS
        assert not cells & taken
        taken |= cells
        assert panel["type"] == "row" or panel["targets"]


def test_the_source_of_the_data_is_the_one_that_is_provisioned():
    (source,) = yaml.safe_load((FOLDER / "grafana" / "datasources.yaml").read_text())["datasources"]
    variable = dashboard()["templating"]["list"][0]
    assert (variable["type"], variable["query"]) == ("datasource", source["type"])
    reference = {"type": source["type"], "uid": f"${{{variable['name']}}}"}
    assert all(panel["datasource"] == reference for panel in dashboard()["panels"] if panel["type"] != "row")

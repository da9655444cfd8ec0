"""The alerts of configs/deploy as Prometheus itself understands them: which are on, and when."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from mcpmux.traffic.telemetry.metrics import SECONDS
from tests.real.parts import program
from tests.traffic.test_dashboard import ASKED, FOLDER, alerts

UP = ("up{job='mcpmux'}", "1x60")
HOUR = "59m"


def promtool(*arguments: str, folder: Path) -> str:
    command = [program("promtool", "prometheus"), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_rules(path: Path, rules: list[dict[str, Any]]) -> None:
    path.write_text(yaml.safe_dump({"groups": [{"name": "mcpmux", "rules": rules}]}))


def test_prometheus_accepts_every_expression_of_the_dashboard(tmp_path: Path):
    expressions = {query.expression.replace("$__rate_interval", "5m") for query in ASKED}
    write_rules(
        tmp_path / "rules.yml",
        [{"record": f"x:{number}", "expr": text} for number, text in enumerate(sorted(expressions))],
    )
    assert f"{len(expressions)} rules found" in promtool("check", "rules", "rules.yml", folder=tmp_path)


def test_prometheus_accepts_its_configuration_and_the_alerts(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("t")
    text = (FOLDER / "prometheus.yml").read_text().replace("/run/secrets/admin_token", str(token))
    (tmp_path / "prometheus.yml").write_text(text)
    (tmp_path / "alerts.yml").write_text((FOLDER / "alerts.yml").read_text())
    output = promtool("check", "config", "prometheus.yml", folder=tmp_path)
    assert f"{len(alerts())} rules found" in output


def exchanges(outcome: str, each_minute: int, method: str = "resources/read") -> tuple[str, str]:
    labels = f'instance="a", method="{method}", upstream="docs", outcome="{outcome}"'
    return f"mcpmux_exchanges_total{{{labels}}}", f"0+{each_minute}x60"


def durations(seconds: float, method: str = "resources/read") -> list[tuple[str, str]]:
    """Return the samples of a hundred requests in a minute that took so long."""
    name = f'mcpmux_exchange_duration_seconds_bucket{{instance="a", method="{method}", upstream="docs", le='
    bounds = [*(f"{bound:g}" for bound in SECONDS), "+Inf"]
    return [(f'{name}"{bound}"}}', f"0+{100 if float(bound) >= seconds else 0}x60") for bound in bounds]


# What Prometheus has seen in an hour, besides that mcpmux is up, and which alerts are on at its end.
HAPPENED: dict[str, tuple[list[tuple[str, str]], set[str]]] = {
    "all is well": (
        [
            exchanges("ok", 1000),
            exchanges("unavailable", 10),
            exchanges("busy", 5),
            exchanges("refused", 100),
            exchanges("invalid_params", 1000),
            *durations(0.1),
            *durations(30.0, "tools/call"),
            ('mcpmux_upstream_up{upstream="docs"}', "1x60"),
            ('mcpmux_upstream_reconnects_total{upstream="docs"}', "0x30 3x30"),
            ("mcpmux_exchanges_in_flight{method='ping'}", "100x60"),
            ("mcpmux_exchanges_in_flight{method='subscriptions/listen'}", "10000x60"),
            ("mcpmux_client_sessions", "100x60"),
            ("mcpmux_audit_failing", "0x60"),
            ("mcpmux_audit_held_back", "3x60"),
            ("mcpmux_capture_paused", "0x60"),
            ("mcpmux_capture_dropped_total", "5x60"),
            ("mcpmux_cluster_store_away", "0x60"),
            ("mcpmux_cluster_inside", "1x60"),
            ("mcpmux_cluster_replicas{job='mcpmux', instance='a'}", "2x60"),
            ("mcpmux_cluster_replicas{job='mcpmux', instance='b'}", "2x60"),
        ],
        set(),
    ),
    "it is gone": ([("up{job='mcpmux'}", "1x50 0x10")], {"McpmuxDown"}),
    "nobody looks": ([("up{job='another'}", "1x60")], {"McpmuxDown"}),
    "an upstream is down": ([('mcpmux_upstream_up{upstream="docs"}', "0x60")], {"McpmuxUpstreamDown"}),
    "an upstream comes and goes": (
        [('mcpmux_upstream_reconnects_total{upstream="docs"}', "0+1x60")],
        {"McpmuxUpstreamUnstable"},
    ),
    "an upstream does not answer": ([exchanges("ok", 90), exchanges("timeout", 10)], {"McpmuxErrors"}),
    "mcpmux fails": ([exchanges("ok", 90), exchanges("broken", 10)], {"McpmuxErrors"}),
    "answers come late": (durations(5.0), {"McpmuxSlow"}),
    "a limit is reached": ([exchanges("ok", 90), exchanges("busy", 10)], {"McpmuxBusy"}),
    "a client tries what it may not": ([exchanges("ok", 50), exchanges("refused", 50)], {"McpmuxRefused"}),
    "requests pile up": ([("mcpmux_exchanges_in_flight{method='ping'}", "600x60")], {"McpmuxManyInFlight"}),
    "clients pile up": ([("mcpmux_client_sessions", "900x60")], {"McpmuxManySessions"}),
    "the disk is full": ([("mcpmux_audit_failing", "1x60")], {"McpmuxAuditFailing"}),
    "the disk is slow": ([("mcpmux_audit_held_back", "200x60")], {"McpmuxAuditSlow"}),
    "a capture stops": ([("mcpmux_capture_paused", "1x60")], {"McpmuxCapturePaused"}),
    "a capture has gaps": ([("mcpmux_capture_dropped_total", "0+5x60")], {"McpmuxCaptureLossy"}),
    "the store is away": ([("mcpmux_cluster_store_away", "1x60")], {"McpmuxStoreAway"}),
    "a lease is lost": ([("mcpmux_cluster_inside", "0x60")], {"McpmuxOutsideCluster"}),
    "replicas do not see each other": (
        [(f"mcpmux_cluster_replicas{{job='mcpmux', instance='{name}'}}", "1x60") for name in "ab"],
        {"McpmuxReplicasApart"},
    ),
}


def test_every_alert_has_an_hour_in_which_it_is_on():
    assert set().union(*(on for _, on in HAPPENED.values())) == set(alerts())


def test_alerts_are_on_when_they_have_to_be(tmp_path: Path):
    (tmp_path / "alerts.yml").write_text((FOLDER / "alerts.yml").read_text())
    tests = [unit_test(name, seen, on) for name, (seen, on) in HAPPENED.items()]
    (tmp_path / "tests.yml").write_text(yaml.safe_dump({"rule_files": ["alerts.yml"], "tests": tests}))
    promtool("test", "rules", "tests.yml", folder=tmp_path)


def unit_test(name: str, seen: list[tuple[str, str]], on: set[str]) -> dict[str, Any]:
    """Return one test of `promtool`, in which exactly these alerts are on."""
    tells_up = any(series.startswith("up{") for series, _ in seen)
    firing = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"}) > bool 0',
        "eval_time": HOUR,
        "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(on)],
    }
    return {
        "name": name,
        "interval": "1m",
        "input_series": [
            {"series": series, "values": values} for series, values in (seen if tells_up else [UP, *seen])
        ],
        "promql_expr_test": [firing],
    }

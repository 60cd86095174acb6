"""The dashboard and the settings beside it name metrics that ``serve`` has, in queries that Prometheus takes."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from anyprobe.exporters.monitoring.prometheus import Cost, Metrics
from support.sample_snapshots import site, snapshot, timing

FOLDER = Path(__file__).parents[3] / "examples/metrics"
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def served():
    """Return the names of samples that there can be, each with its labels."""
    found = snapshot(functions=(timing(),), sites=(site(),), pause_us={"arm": 3.0})
    registry = CollectorRegistry()
    registry.register(Metrics(lambda: found, 0, lambda: Cost(1.0, 5.0)))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def test_each_metric_and_label_of_the_dashboard_is_served():
    known = served()
    variables = [each["query"] for each in DASHBOARD["templating"]["list"]]
    for query in (*QUERIES, *variables):
        names = set(re.findall(r"anyprobe_\w+", query))
        assert names
        assert names <= known.keys(), query
        labels = {label for words in re.findall(r"by \(([^)]*)\)", query) for label in words.split(", ")}
        labels |= set(re.findall(r"\{(\w+)=~", query)) - {"__name__"}
        assert labels <= set().union(*(known[name] for name in names)), query
    assert known.keys() <= set(re.findall(r"anyprobe_\w+", " ".join(QUERIES))), "a metric is in no panel"


def test_panels_do_not_overlap():
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool")
def test_prometheus_takes_the_queries_and_the_settings(tmp_path):
    texts = [each.replace("$__rate_interval", "1m").replace("$function", ".*") for each in QUERIES]
    rules = [{"record": f"query:{number}", "expr": text} for number, text in enumerate(texts)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "a", "rules": rules}]}))
    for command in (("check", "rules", tmp_path / "rules.yml"), ("check", "config", FOLDER / "prometheus.yml")):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_files_that_are_mounted_are_there_and_agree():
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    assert services.keys() == {"prometheus", "grafana"}
    inside = {}
    for service in services.values():
        for volume in service.get("volumes", ()):
            own, there, mode = volume.split(":")
            assert (FOLDER / own).is_file()
            assert mode == "ro"
            inside[there] = FOLDER / own
    (source,) = yaml.safe_load((FOLDER / "grafana-datasource.yaml").read_text())["datasources"]
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {source["uid"]}
    assert source["url"] == "http://127.0.0.1:9090"
    assert "--web.listen-address=127.0.0.1:9090" in services["prometheus"]["command"]
    (provider,) = yaml.safe_load((FOLDER / "grafana-dashboards.yaml").read_text())["providers"]
    assert f"{provider['options']['path']}/anyprobe.json" in inside

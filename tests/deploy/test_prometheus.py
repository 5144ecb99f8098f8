"""Alert rules and scrape configurations: every metric exists, every job is scraped, promtool is content."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy import files
from tocsin.pipeline.runtime.flink.driver import COUNTERS

FOLDER = files.DEPLOY / "prometheus"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))["groups"] for rule in group["rules"]
]
FLINK = {
    "flink_jobmanager_numRunningJobs",
    "flink_jobmanager_job_numRestarts",
    "flink_jobmanager_job_numberOfFailedCheckpoints",
    "flink_taskmanager_job_task_operator_currentInputWatermark",
    "flink_taskmanager_job_task_operator_pendingRecords",
}
"""Flink's own, as they stood on the pages of a 2.2.1 cluster that ran the job."""
OUR_FLINK = "flink_taskmanager_job_task_operator_tocsin_"


def source(*rooms: str) -> str:
    paths = [path for room in rooms for path in (files.ROOT / room).rglob("*.py")]
    return "\n".join(path.read_text("utf-8") for path in paths)


def metrics() -> set[str]:
    found: set[str] = set()
    for rule in RULES:
        found |= set(re.findall(r"\b(?:tocsin|flink)_\w+", re.sub(r'"[^"]*"', "", rule["expr"])))
    return found


@pytest.mark.parametrize("name", sorted(metrics()))
def test_each_metric_is_one_that_a_page_shows(name: str) -> None:
    if name.startswith(OUR_FLINK):
        assert name.removeprefix(OUR_FLINK) in COUNTERS
    elif name.startswith("flink_"):
        assert name in FLINK
    elif name.startswith("tocsin_agent_"):
        text = source("collectors")
        assert f'"{name}"' in text or f'("{name.removeprefix("tocsin_agent_")}"' in text
    else:
        assert set(spellings(name)) & set(re.findall(r'"[^"\n]*"', source("pipeline")))


def spellings(name: str) -> list[str]:
    """Return how a source file may write a metric's name: whole, or with the prefix of a sink's class."""
    prefixes = re.findall(r'metric_prefix = "(\w+)"', source("pipeline"))
    rests = [name.removeprefix(f"{one}_") for one in prefixes if name.startswith(f"{one}_")]
    return [f'"{name}"', *(f'"{{self.metric_prefix}}_{rest}"' for rest in rests), *(f'"{rest}"' for rest in rests)]


def test_a_metric_that_nothing_shows_is_not_found() -> None:
    assert '"{self.metric_prefix}_waiting"' in spellings("tocsin_sink_waiting")
    assert spellings("tocsin_other_waiting") == ['"tocsin_other_waiting"']


def test_the_operator_that_an_alert_names_is_the_job_s() -> None:
    named = {name for rule in RULES for name in re.findall(r'operator_name="(\w+)"', rule["expr"])}

    assert named == {"operators"}
    assert '.name("operators")' in (files.ROOT / "pipeline" / "runtime" / "flink" / "job.py").read_text("utf-8")


def test_each_alert_says_how_bad_it_is_and_what_to_look_at() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["alert"].startswith("Tocsin")


def test_the_docs_name_every_critical_alert() -> None:
    text = " ".join(files.DOCS.read_text("utf-8").split())
    (paragraph,) = re.findall(r"Wake somebody for the critical ones: (.*?)\. `compose", text)

    critical = {rule["alert"] for rule in RULES if rule["labels"]["severity"] == "critical"}
    assert set(re.findall(r"`(Tocsin\w+)`", paragraph)) == critical
    assert f"has {len(RULES)} alerts" in text


def test_the_jobs_that_rules_name_are_scraped() -> None:
    wanted = {job for rule in RULES for job in re.findall(r'job="([\w-]+)"', rule["expr"])}
    labels = {template["metadata"]["labels"]["app.kubernetes.io/name"] for _, template in files.pods()}
    compose = "".join((FOLDER / name).read_text("utf-8") for name in ("compose.yml", "small.yml"))
    (kubernetes,) = yaml.safe_load((FOLDER / "kubernetes.yml").read_text("utf-8"))["scrape_configs"]

    assert wanted - {"tocsin-serve"} <= labels  # the small form's engine runs on no Kubernetes of ours
    assert all(f"job_name: {job}" in compose for job in wanted)
    relabelled = {rule.get("target_label"): rule["source_labels"] for rule in kubernetes["relabel_configs"]}
    assert relabelled["job"] == ["__meta_kubernetes_pod_label_app_kubernetes_io_name"]
    (where,) = kubernetes["kubernetes_sd_configs"]
    assert set(where["namespaces"]["names"]) == {container.namespace for container in files.containers()}


@pytest.fixture
def promtool(tmp_path: Path) -> Any:
    """Run promtool in a folder that has the rules."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool on the PATH (apt-get install prometheus)")
    shutil.copy(FOLDER / "alerts.yml", tmp_path)

    def run(*arguments: str) -> str:
        ran = subprocess.run([found, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False)
        return "" if ran.returncode == 0 else ran.stdout + ran.stderr

    return run


def test_promtool_takes_the_rules_and_they_fire_when_they_should(promtool: Any, tmp_path: Path) -> None:
    text = (Path(__file__).parent / "alerts_test.yml").read_text("utf-8")
    (tmp_path / "test.yml").write_text(text.replace("RULES", "alerts.yml"))

    assert promtool("check", "rules", "alerts.yml") == ""
    assert promtool("test", "rules", "test.yml") == ""


@pytest.mark.parametrize("name", ["compose.yml", "kubernetes.yml", "small.yml"])
def test_promtool_takes_the_scrape_configurations(promtool: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text((FOLDER / name).read_text("utf-8").replace("/etc/prometheus/", ""))
    said = promtool("check", "config", name)
    if "kubernetes_sd_configs not found" in said:
        pytest.skip("this promtool was built without Kubernetes (Debian's is)")

    assert said == ""

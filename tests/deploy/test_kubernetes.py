"""The manifests: form, references, and the rights that each pod has."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from tests.deploy import files
from tests.deploy.files import Container

CONTAINERS = list(files.containers())
RESTRICTED_VOLUMES = {"configMap", "secret", "persistentVolumeClaim", "emptyDir", "projected", "downwardAPI"}
NO_PROBE = {
    "Deployment/tocsin-ticker": "serves no page; an alert watches the time it moves",
    "FlinkDeployment/tocsin": "the operator watches it",
    "Job/tocsin-topics": "ends",
    "Job/tocsin-migrate": "ends",
}
each_container = pytest.mark.parametrize("container", CONTAINERS, ids=lambda one: f"{one.owner}:{one.spec['name']}")


def owner_name(one: dict[str, Any]) -> str:
    return f"{one['kind']}/{one['metadata']['name']}"


def test_kustomize_builds_all_of_it() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on the PATH")
    ran = subprocess.run([kubectl, "kustomize", str(files.KUBERNETES)], capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr
    built = {(one["kind"], one["metadata"]["name"]) for one in yaml.safe_load_all(ran.stdout)}
    assert built == {(one["kind"], one["metadata"]["name"]) for one in files.objects()}


def test_kustomization_names_every_file() -> None:
    named = yaml.safe_load((files.KUBERNETES / "kustomization.yaml").read_text("utf-8"))["resources"]

    assert sorted([*named, "kustomization.yaml"]) == sorted(path.name for path in files.KUBERNETES.iterdir())


@pytest.mark.parametrize("one", [o for o in files.objects() if o["kind"] != "FlinkDeployment"], ids=owner_name)
def test_each_object_has_its_kind_s_form(one: dict[str, Any]) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate: the API's schemas")

    validator.validate(one, "1.30", strict=True)


@pytest.mark.parametrize("one", files.objects(), ids=owner_name)
def test_each_object_says_where_it_belongs(one: dict[str, Any]) -> None:
    assert one["metadata"]["labels"]["app.kubernetes.io/part-of"] == "tocsin"
    if one["kind"] != "Namespace":
        assert one["metadata"]["namespace"] in {"tocsin", "tocsin-flink", "tocsin-agents"}


@pytest.mark.parametrize(("one", "template"), list(files.pods()), ids=lambda one: one.get("kind", ""))
def test_a_selector_finds_its_own_pods(one: dict[str, Any], template: dict[str, Any]) -> None:
    labels = template["metadata"]["labels"]
    assert labels["app.kubernetes.io/part-of"] == "tocsin"
    wanted = one["spec"].get("selector", {}).get("matchLabels", {})

    assert wanted.items() <= labels.items()


@each_container
def test_what_a_container_refers_to_is_there(container: Container) -> None:
    """ConfigMaps in these files, Secrets in the docs, every mount a volume."""
    documented = files.DOCS.read_text("utf-8")
    volumes = {volume["name"]: volume for volume in container.pod.get("volumes", ())}
    for mount in container.spec.get("volumeMounts", ()):
        volume = volumes[mount["name"]]
        if "configMap" in volume:
            assert files.config(volume["configMap"]["name"], container.namespace)
        if "secret" in volume:
            name = volume["secret"]["secretName"]
            assert f"-n {container.namespace} create secret generic {name} " in documented
            assert volume["secret"]["defaultMode"] == 0o440
            assert container.pod["securityContext"]["fsGroup"] == container.pod["securityContext"]["runAsGroup"]
        if "persistentVolumeClaim" in volume:
            files.named("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"], container.namespace)
    files.environment_of(container)


@each_container
def test_the_files_that_settings_name_are_mounted(container: Container) -> None:
    environment = files.environment_of(container)
    mounted = {mount["mountPath"] for mount in container.spec.get("volumeMounts", ())}
    uses_kafka = container.owner != "Job/tocsin-migrate"
    text = " ".join(environment.values()) if uses_kafka else environment["TOCSIN_CLICKHOUSE"]
    if container.owner not in {"Job/tocsin-migrate", "Deployment/tocsin-sink"}:
        text = text.replace(environment.get("TOCSIN_CLICKHOUSE", "-"), "")  # it does not open that
    for folder in re.findall(r"(/etc/tocsin/[a-z]+)", text):
        assert folder in mounted, f"{container.owner} is told of {folder}"
    if uses_kafka and not container.is_init:
        assert "/etc/tocsin/kafka" in mounted


def test_no_secret_is_in_the_files() -> None:
    assert [one for one in files.objects() if one["kind"] == "Secret"] == []
    for one in files.objects():
        if one["kind"] == "ConfigMap":
            text = "\n".join(one["data"].values())
            found = re.findall(r"password(?!_file)\W{0,4}[=:]\W{0,3}([^\s\"\\;&]+)", text)
            assert set(found) <= {"{dir:/etc/tocsin/kafka:password}"}
            assert "PRIVATE KEY" not in text
    assert {name for c in CONTAINERS for name in files.environment_of(c) if "PASSWORD" in name} == set()


@each_container
def test_each_container_has_no_more_rights_than_it_needs(container: Container) -> None:
    rights = container.spec["securityContext"]
    assert rights["allowPrivilegeEscalation"] is False
    assert "privileged" not in rights
    assert rights["capabilities"]["drop"] == ["ALL"]
    assert rights["capabilities"].get("add", []) == (["CHOWN"] if container.is_init else [])
    if container.image != "tocsin-flink":
        assert rights["readOnlyRootFilesystem"] is True
    assert container.pod["securityContext"]["runAsNonRoot"] is True
    assert container.pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert (rights.get("runAsUser", container.pod["securityContext"]["runAsUser"]) == 0) == container.is_init


@each_container
def test_only_what_speaks_to_the_cluster_s_api_may(container: Container) -> None:
    if container.image == "tocsin-flink":
        assert files.named("FlinkDeployment", "tocsin")["spec"]["serviceAccount"] == "tocsin-flink"
    else:
        assert container.pod["automountServiceAccountToken"] is False
        assert "serviceAccountName" not in container.pod


def test_who_makes_pods_lives_where_no_other_secret_is() -> None:
    """A role that makes pods mounts every Secret of its namespace."""
    makers = {
        one["metadata"]["namespace"]
        for one in files.objects()
        if one["kind"] in {"Role", "ClusterRole"}
        for rule in one["rules"]
        if {"pods", "deployments", "jobs", "*"} & set(rule["resources"]) and {"create", "*"} & set(rule["verbs"])
    }
    assert makers == {"tocsin-flink"}
    assert {c.owner for c in CONTAINERS if c.namespace == "tocsin-flink"} == {"FlinkDeployment/tocsin"}
    documented = files.DOCS.read_text("utf-8")
    assert re.findall(r"-n tocsin-flink create secret generic (\S+)", documented) == ["tocsin-kafka"]
    assert not [one for one in files.objects() if one["kind"].startswith("Cluster")]


def test_pods_of_the_restricted_namespace_keep_its_standard() -> None:
    for name in ("tocsin", "tocsin-flink"):
        labels = files.named("Namespace", name)["metadata"]["labels"]
        assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    for container in CONTAINERS:
        if container.namespace != "tocsin-agents":
            assert not {"hostPID", "hostNetwork", "hostIPC"} & set(container.pod)
            kinds = {kind for volume in container.pod.get("volumes", ()) for kind in volume if kind != "name"}
            assert kinds <= RESTRICTED_VOLUMES
            assert not [port for port in container.spec.get("ports", ()) if "hostPort" in port]


def test_the_agent_sees_of_the_host_what_is_documented() -> None:
    pod = files.named("DaemonSet", "tocsin-agent")["spec"]["template"]["spec"]
    (agent,) = [one for one in CONTAINERS if one.owner == "DaemonSet/tocsin-agent" and not one.is_init]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    writable = {paths[m["name"]] for m in agent.spec["volumeMounts"] if m["name"] in paths and not m.get("readOnly")}

    assert set(paths.values()) == {"/run/tocsin", "/var/lib/tocsin", "/var/log"}
    assert writable == {"/run/tocsin", "/var/lib/tocsin"}
    assert (pod["hostPID"], pod["hostNetwork"], "hostIPC" in pod) == (True, True, False)
    header = (files.KUBERNETES / "agent.yaml").read_text("utf-8").partition("apiVersion")[0]
    for word in ("hostPID", "hostNetwork", *paths.values()):
        assert word in header


@each_container
def test_resources_are_asked_for_and_memory_is_bounded(container: Container) -> None:
    if container.image == "tocsin-flink":
        spec = files.named("FlinkDeployment", "tocsin")["spec"]
        assert all({"memory", "cpu"} == set(spec[part]["resource"]) for part in ("jobManager", "taskManager"))
        return
    resources = container.spec["resources"]
    assert set(resources["requests"]) == {"cpu", "memory"}
    assert "memory" in resources["limits"]


@each_container
def test_a_process_that_stands_is_started_again(container: Container) -> None:
    if container.owner in NO_PROBE or container.is_init:
        assert "livenessProbe" not in container.spec
        return
    probe = container.spec["livenessProbe"]["httpGet"]
    ports = {port["name"]: port["containerPort"] for port in container.spec["ports"]}

    on_the_node = {"host": "127.0.0.1"} if "hostPort" in container.spec["ports"][0] else {}
    assert probe == {"path": "/healthz", "port": "metrics", **on_the_node}
    assert any(str(argument).endswith(f":{ports['metrics']}") for argument in container.spec["args"])


def policies() -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one["spec"] for one in files.objects() if one["kind"] == "NetworkPolicy"}


def chosen(policy: dict[str, Any]) -> set[str]:
    """The names of the pods that a policy is for."""
    expressions = policy["podSelector"].get("matchExpressions", ())
    return {value for expression in expressions for value in expression["values"]}


def open_ports(policy: dict[str, Any], direction: str) -> set[int]:
    return {port["port"] for rule in policy[direction] for port in rule.get("ports", ())}


def test_the_network_lets_through_what_is_configured_and_nothing_else() -> None:
    environment, found = files.config("tocsin-environment", "tocsin"), policies()
    kafka_port = int(environment["TOCSIN_KAFKA"].rpartition(":")[2])
    clickhouse_port = int(re.findall(r":(\d+)\?", environment["TOCSIN_CLICKHOUSE"])[0])

    nothing = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert found["default-deny"] == found["flink-default-deny"] == nothing
    assert open_ports(found["kafka"], "egress") == open_ports(found["flink-kafka"], "egress") == {kafka_port}
    assert open_ports(found["clickhouse"], "egress") == {clickhouse_port}
    for namespace, name in (("tocsin", "metrics"), ("tocsin-flink", "flink-metrics")):
        pages = {p["containerPort"] for c in CONTAINERS if c.namespace == namespace for p in c.spec.get("ports", ())}
        assert open_ports(found[name], "ingress") == pages
    mounts = {
        folder: {
            template["metadata"]["labels"]["app.kubernetes.io/name"]
            for _, template in files.pods()
            for volume in template["spec"]["volumes"]
            if volume.get("secret", {}).get("secretName") == f"tocsin-{folder}"
        }
        for folder in ("kafka", "clickhouse")
    }
    assert chosen(found["kafka"]) == mounts["kafka"] - {"tocsin-agent", "tocsin-flink"}
    assert chosen(found["clickhouse"]) == mounts["clickhouse"]


def test_both_namespaces_speak_to_the_same_topics() -> None:
    here, there = (files.config("tocsin-environment", name) for name in ("tocsin", "tocsin-agents"))

    for name in ("TOCSIN_KAFKA", "TOCSIN_TOPIC_PREFIX", "TOCSIN_KAFKA_CONFIG"):
        assert here[name] == there[name]
    assert "TOCSIN_CLICKHOUSE" not in there

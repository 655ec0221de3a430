"""What deploy/ says of the proxy is so: its options, ports, paths, files and metrics. No container runs here."""

import json
import plistlib
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from hivemind_addon.proxy.gate.addresses import PAGE_HOST
from hivemind_addon.proxy.gate.interfaces.pages import _PATHS
from hivemind_addon.proxy.gate.proxy import DRAIN_S
from hivemind_addon.proxy.record.contexts import Contexts
from hivemind_addon.proxy.record.metrics import Metrics
from hivemind_addon.proxy.record.sums import Sums
from hivemind_addon.proxy.run.option_table import OPTIONS
from hivemind_addon.tools.cli import main
from hivemind_addon.tools.commands.run import run
from hivemind_addon.tools.launch.port import DEFAULT_PORT
from hivemind_addon.tools.launch.proxy_command import _set_names, check_options, mitmproxy_program
from tests.shell_lines import blocks, calls

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "docs" / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
KUBERNETES = {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8"))}
ALERTS = yaml.safe_load((DEPLOY / "alerts.yml").read_text(encoding="utf-8"))
PROMETHEUS = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))
PAGE = ROOT / "docs" / "teams.md"


def dockerfile(instruction):
    """What stands behind each of them, in order."""
    return re.findall(rf"^{instruction}\s+(.+)$", DOCKERFILE, re.MULTILINE)


def entry():
    return json.loads(dockerfile("ENTRYPOINT")[0])


def unit():
    """Section → key → its values: a unit may have a key more than once."""
    found: dict[str, dict[str, list[str]]] = {}
    for line in (DEPLOY / "hivemind@.service").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            section.setdefault(key, []).append(value)
    return found


def plist():
    return plistlib.loads((DEPLOY / "hivemind.plist").read_bytes())


def containers():
    return KUBERNETES["Deployment"]["spec"]["template"]["spec"]["containers"]


def command_lines():
    """Every command line of ours in deploy/, by where it stands."""
    yield "compose.yaml", [*entry(), *COMPOSE["services"]["proxy"]["command"]]
    yield "kubernetes.yaml", [*entry(), *containers()[0]["args"]]
    yield "hivemind@.service", shlex.split(unit()["Service"]["ExecStart"][0].replace("%i", "8080"))
    yield "hivemind.plist", next(calls(plist()["ProgramArguments"][2]))


def test_every_command_line_is_understood():
    for where, (program, command, *words) in command_lines():
        assert (Path(program).name, command) == ("hivemind", "run"), where
        # Of a unit $OPTIONS is a person's own.
        typed = [word for word in words if word != "$OPTIONS"]
        params = run.make_context("run", typed, parent=main.make_context("hivemind", ["run"])).params
        passed = params["mitmproxy_options"]
        check_options(passed, mitmproxy_program(web=False))
        ours = {name for name in _set_names(passed) if name.startswith("hivemind_")}
        assert ours <= {option.name for option in OPTIONS}, where
        assert params["port"] == DEFAULT_PORT, where
        wide = params["host"] not in (None, "127.0.0.1")
        assert wide is (where != "hivemind.plist"), where
        # Beyond loopback only for clients that have a name and a secret.
        assert not wide or (params["allow_clients"] and params["agent_secrets"]), where


def test_the_image_has_what_it_copies_and_no_more_rights_than_it_needs():
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    assert ignored[0] == "*"
    for copied in dockerfile("COPY"):
        if not copied.startswith("--from="):
            for source in copied.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in ignored, source
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = re.search(r'"\.\[(.+?)\]"', DOCKERFILE)[1].split(",")
    assert set(extras) <= set(packaged["project"]["optional-dependencies"])
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", dockerfile("USER")[0])  # a number: Kubernetes' runAsNonRoot
    assert dockerfile("EXPOSE") == [str(DEFAULT_PORT)]
    context = KUBERNETES["Deployment"]["spec"]["template"]["spec"]["securityContext"]
    assert dockerfile("USER") == [f"{context['runAsUser']}:{context['runAsGroup']}"]


def test_whatever_the_container_writes_is_mounted_so_that_its_root_may_be_read_only():
    environment = dict(word.split("=", 1) for word in dockerfile("ENV")[0].split())
    written = {environment[name] for name in ("HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR")}
    written.add(next(word for word in entry() if word.startswith("confdir=")).removeprefix("confdir="))
    proxy = COMPOSE["services"]["proxy"]
    assert proxy["read_only"] is True
    writable = {volume.split(":")[1] for volume in proxy["volumes"] if not volume.endswith(":ro")}
    assert written == writable | {*proxy["tmpfs"]}
    assert set(json.loads(dockerfile("VOLUME")[0])) <= written
    pod = containers()[0]
    assert pod["securityContext"]["readOnlyRootFilesystem"] is True
    assert written <= {mount["mountPath"] for mount in pod["volumeMounts"]}


def test_no_image_names_a_registry():
    names = [name.split()[0] for name in dockerfile("FROM")]
    names += [service["image"] for service in COMPOSE["services"].values()]
    names += [container["image"] for container in containers()]
    assert [name for name in names if "/" in name and re.search(r"[.:]", name.partition("/")[0])] == []
    assert [name for name in names if name.endswith(":latest")] == []


def test_the_image_is_healthy_while_the_proxy_says_so():
    command = json.loads(re.search(r"HEALTHCHECK.* CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)[1])
    statuses = [200, 503]
    asked = []

    class Health(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers["host"]))
            self.send_response(statuses[len(asked) - 1])
            self.end_headers()

        def log_message(self, *_):
            pass

    def look(port):
        ours = [sys.executable, *(word.replace(str(DEFAULT_PORT), str(port)) for word in command[1:])]
        return subprocess.run(ours, capture_output=True, check=False, timeout=60).returncode

    with HTTPServer(("127.0.0.1", 0), Health) as server:
        thread = Thread(target=lambda: [server.handle_request() for _ in statuses])
        thread.start()
        assert [look(server.server_port) for _ in statuses] == [0, 1]
        thread.join()
    assert asked == [("/health", PAGE_HOST)] * 2
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert look(port) == 1


def test_compose_mounts_what_is_there_and_declares_what_it_uses():
    services = COMPOSE["services"]
    volumes = [volume for service in services.values() for volume in service.get("volumes", ())]
    named = {volume.split(":")[0] for volume in volumes if not volume.startswith(".")}
    assert named == set(COMPOSE["volumes"])
    for volume in volumes:
        if volume.startswith(".") and not volume.startswith("./secrets/"):
            assert (DEPLOY / volume.split(":")[0]).exists(), volume
    used = [name for service in services.values() for name in service.get("secrets", ())]
    assert set(used) == set(COMPOSE["secrets"])
    for name in used:
        assert f"/run/secrets/{name}" in (DEPLOY / "compose.yaml").read_text() + json.dumps(PROMETHEUS), name
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
    assert services["proxy"]["ports"][0].endswith(f":{DEFAULT_PORT}:{DEFAULT_PORT}")
    assert (DEPLOY / services["proxy"]["build"]["context"] / services["proxy"]["build"]["dockerfile"]).is_file()


def test_the_page_makes_every_secret_that_compose_mounts():
    typed = " ".join(line for _, line in blocks(PAGE)).split()
    proxy = COMPOSE["services"]["proxy"]
    wanted = [secret["file"] for secret in COMPOSE["secrets"].values()] + proxy["env_file"]
    assert len(wanted) == 4
    assert [file for file in wanted if file not in typed] == []


def test_no_page_lets_the_engines_user_erase_what_others_keep_there():
    """`@read` and `@write` have `KEYS`, `FLUSHALL` and `SWAPDB` in them; what is denied last, counts."""
    pages = {page.name: page.read_text(encoding="utf-8") for page in PAGE.parent.glob("*.md")}
    lines = [(name, line) for name, page in pages.items() for line in re.findall(r"~hivemind:.*\+@.*", page)]
    assert {name for name, _ in lines} == {"cluster.md", "leases.md", "teams.md"}
    open_ = [(name, line) for name, line in lines if not re.search(r"-@admin -@dangerous(?: \+info)?(?:`|$)", line)]
    assert open_ == []


def test_the_source_distribution_has_what_deploy_needs():
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    included = packaged["sdist"]["include"]
    needed = {source for copied in dockerfile("COPY") if "--from" not in copied for source in copied.split()[:-1]}
    needed |= {"docs/deploy", "docs/grafana.json", "docs/teams.md"} | {"pyproject.toml"}
    assert needed - {"pyproject.toml"} <= set(included)  # which is always there
    assert packaged["wheel"]["packages"] == ["src/hivemind_addon"]


def seconds(text):
    return float(re.fullmatch(r"(\d+)s?", str(text))[1])


def test_every_supervisor_waits_longer_than_the_proxy_drains():
    spec = KUBERNETES["Deployment"]["spec"]["template"]["spec"]
    before = float(containers()[0]["lifecycle"]["preStop"]["exec"]["command"][1])
    waits = {
        "compose": seconds(COMPOSE["services"]["proxy"]["stop_grace_period"]),
        "systemd": seconds(unit()["Service"]["TimeoutStopSec"][0]),
        "launchd": plist()["ExitTimeOut"],
        "kubernetes": spec["terminationGracePeriodSeconds"] - before,
    }
    assert {who for who, wait_s in waits.items() if wait_s < DRAIN_S + 10} == set()


def test_probes_ask_for_what_the_proxy_answers():
    ports = {port["name"]: port["containerPort"] for port in containers()[0]["ports"]}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = containers()[0][kind]["httpGet"]
        assert asked["path"] in _PATHS, kind
        assert ports[asked["port"]] == DEFAULT_PORT, kind
        assert {"name": "Host", "value": PAGE_HOST} in asked["httpHeaders"], kind
    balancer = (DEPLOY / "haproxy.cfg").read_text(encoding="utf-8")
    asked = re.search(r"http-check send meth GET uri (\S+) ver HTTP/1.1 hdr Host (\S+)$", balancer, re.MULTILINE)
    assert asked[1] in _PATHS
    assert asked[2] == PAGE_HOST
    assert {line.rpartition(":")[2] for line in re.findall(r"^\s+server (.+)$", balancer, re.MULTILINE)} == {"8080"}


def test_kubernetes_objects_find_each_other():
    deployment, service = KUBERNETES["Deployment"]["spec"], KUBERNETES["Service"]["spec"]
    for one in KUBERNETES.values():
        assert {"apiVersion", "kind", "metadata", "spec"} <= one.keys()
        assert one["metadata"]["name"]
    labels = deployment["template"]["metadata"]["labels"].items()
    spread = deployment["template"]["spec"]["topologySpreadConstraints"][0]
    for selector in (
        deployment["selector"]["matchLabels"],
        service["selector"],
        KUBERNETES["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        spread["labelSelector"]["matchLabels"],
    ):
        assert selector
        assert selector.items() <= labels
    assert deployment["replicas"] > KUBERNETES["PodDisruptionBudget"]["spec"]["minAvailable"]
    assert service["ports"][0]["targetPort"] in {port["name"] for port in containers()[0]["ports"]}
    volumes = {volume["name"]: volume for volume in deployment["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in containers()[0]["volumeMounts"]} == set(volumes)
    secrets = {volume["secret"]["secretName"] for volume in volumes.values() if "secret" in volume}
    secrets |= {variable["valueFrom"]["secretKeyRef"]["name"] for variable in containers()[0]["env"]}
    typed = " ".join(line for _, line in blocks(PAGE))
    assert secrets == set(re.findall(r"create secret generic (\S+) ", typed))


def exposed():
    """Name of a series → its labels, of what Prometheus adds, too."""
    metrics = Metrics(Sums(), Contexts())
    known = {one.name: {*one.labels} for one in metrics.described()}
    for one in metrics.described():
        if one.type == "histogram":
            known |= {f"{one.name}{end}": {*one.labels, "le"} for end in ("_bucket", "_sum", "_count")}
    return known | {"up": set()}


def test_alerts_ask_for_metrics_that_are_told():
    alerts = [rule for group in ALERTS["groups"] for rule in group["rules"]]
    asked = {rule["alert"]: rule["expr"] for rule in alerts}
    known = exposed()
    unknown = []
    for where, expression in asked.items():
        for name, selector in re.findall(r"\b(hivemind_\w+|up)\b(\{[^}]*\})?", expression):
            labels = set(re.findall(r"(\w+)\s*(?:=~|!=|=)", selector)) - {"job", "instance"}
            if name not in known or labels - known[name]:
                unknown.append(f"{where}: {name}{selector}")
    assert unknown == []
    for rule in alerts:
        assert rule["annotations"].keys() == {"summary", "cure"}, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
    # Their labels of the job are those that Prometheus gives.
    jobs = {job["job_name"] for job in PROMETHEUS["scrape_configs"]}
    assert set(re.findall(r'job="(\w+)"', json.dumps(ALERTS).replace("\\", ""))) <= jobs


def test_grafana_finds_its_source_and_its_dashboard():
    folder = DEPLOY / "grafana" / "provisioning"
    source = yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text())["datasources"][0]
    dashboard = json.loads((ROOT / "docs" / "grafana.json").read_text(encoding="utf-8"))
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    used = {
        (asked["type"], asked["uid"])
        for panel in dashboard["panels"]
        for asked in (panel.get("datasource"), *(target.get("datasource") for target in panel.get("targets", ())))
        if asked
    }
    for kind, uid in used:
        assert kind == source["type"]
        if uid.startswith("$"):  # Grafana fills it with the default source of that kind
            variable = variables[uid.strip("${}")]
            assert (variable["type"], variable["query"]) == ("datasource", source["type"])
        else:
            assert uid == source["uid"]
    assert source["isDefault"] is True
    services = COMPOSE["services"]
    host, port = re.fullmatch(r"http://(\w+):(\d+)", source["url"]).groups()
    assert services[host]["ports"][0].endswith(f":{port}")
    provider = yaml.safe_load((folder / "dashboards" / "hivemind.yml").read_text())["providers"][0]
    mounted = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    assert Path(mounted["../grafana.json"]).parent == Path(provider["options"]["path"])
    assert services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in mounted.values()
    assert mounted["./grafana/provisioning"] == "/etc/grafana/provisioning"


def test_prometheus_asks_the_proxies_as_compose_runs_them():
    job = PROMETHEUS["scrape_configs"][0]
    asked = job["dns_sd_configs"][0]
    assert set(asked["names"]) <= set(COMPOSE["services"])
    assert asked["port"] == DEFAULT_PORT
    assert job.get("metrics_path", "/metrics") in _PATHS
    mounted = dict(volume.split(":")[:2] for volume in COMPOSE["services"]["prometheus"]["volumes"])
    assert [Path(mounted[f"./{name}"]).parent for name in PROMETHEUS["rule_files"]] == [
        Path(mounted["./prometheus.yml"]).parent
    ]


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool (Debian: prometheus) is not installed")
def test_alerts_ring_when_they_should_and_only_then(tmp_path):
    shutil.copy(DEPLOY / "alerts.yml", tmp_path)
    shutil.copy(Path(__file__).parent / "alerts_test.yml", tmp_path)
    subprocess.run(
        ["promtool", "check", "config", "--syntax-only", DEPLOY / "prometheus.yml"], check=True, capture_output=True
    )
    done = subprocess.run(
        ["promtool", "test", "rules", tmp_path / "alerts_test.yml"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case():
    text = (Path(__file__).parent / "alerts_test.yml").read_text(encoding="utf-8")
    tried = {case["alertname"] for test in yaml.safe_load(text)["tests"] for case in test["alert_rule_test"]}
    assert tried == {rule["alert"] for group in ALERTS["groups"] for rule in group["rules"]}


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(tmp_path):
    text = (DEPLOY / "hivemind@.service").read_text(encoding="utf-8")
    program = unit()["Service"]["ExecStart"][0].split()[0]
    (tmp_path / "hivemind@8080.service").write_text(text.replace(program, sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / "hivemind@8080.service"],
        check=False,
        capture_output=True,
        text=True,
    )
    ours = [line for line in done.stderr.splitlines() if "hivemind@" in line]
    assert ours == []
    assert done.returncode == 0, done.stderr


def test_the_unit_and_the_plist_start_again_what_failed_and_only_that():
    service = unit()["Service"]
    assert service["Restart"] == ["on-failure"]
    assert service["DynamicUser"] == ["yes"]
    assert service["ProtectSystem"] == ["strict"]
    # mitmproxy's OpenSSL callbacks need it (pyOpenSSL, cffi): with it every handshake fails.
    assert "MemoryDenyWriteExecute" not in service
    assert plist()["KeepAlive"] == {"SuccessfulExit": False}

"""Files by which anyprobe is started elsewhere: systemd takes the unit, fields are right, arguments are anyprobe's."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from anyprobe.cli import group

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples/deploy"
UNIT = (FOLDER / "anyprobe-serve@.service").read_text()
CONTAINERFILE = (FOLDER / "Containerfile").read_text()
NEEDED = {"SYS_PTRACE", "DAC_OVERRIDE"}
"""Capabilities, as tests/live/test_deployed.py tries."""


def parsed(arguments):
    """Read a command line of anyprobe's, and return the options of its command."""
    with group.make_context("anyprobe", list(arguments)) as root:
        name, command, rest = group.resolve_command(root, list(arguments))
        with command.make_context(name, rest, parent=root) as context:
            return context.params


def settings(text):
    return re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path):
    here = tmp_path / "anyprobe-serve@.service"
    here.write_text(UNIT.replace("/opt/anyprobe/bin/anyprobe", str(Path(sys.executable).parent / "anyprobe")))
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "anyprobe-serve@nginx.service")]
    (tmp_path / "anyprobe-serve@nginx.service").symlink_to(here)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert here.name not in done.stderr
    assert "nginx.service" not in done.stderr


def test_the_unit_has_what_anyprobe_needs():
    found = dict(settings(UNIT))
    assert {each.removeprefix("CAP_") for each in found["CapabilityBoundingSet"].split()} == NEEDED
    assert found["AmbientCapabilities"] == found["CapabilityBoundingSet"]
    assert (found["KillSignal"], found["SuccessExitStatus"]) == ("SIGINT", "130")
    text = found["ExecStart"].replace("$SPECS", "libssl:SSL_read").replace("${LISTEN}", "127.0.0.1:9464")
    _, *arguments = shlex.split(text.replace("%i", "nginx"))
    options = parsed(arguments)
    assert options["names"] == ("nginx",)
    assert options["new"]


def test_the_image_has_extras_that_there_are():
    extras = re.search(r"/source\[([\w,]+)\]", CONTAINERFILE)[1].split(",")
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) <= known.keys()
    words = {line.split()[0] for line in re.sub(r"\\\n", " ", CONTAINERFILE).splitlines() if line and line[0] != "#"}
    assert words <= {"FROM", "COPY", "RUN", "ENV", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
    first, *_, last = re.findall(r"^FROM (\S+)", CONTAINERFILE, re.MULTILINE)
    assert first == last, "what was built for one Python runs with another one"


def test_a_pod_on_each_node_has_what_anyprobe_needs():
    document = yaml.safe_load((FOLDER / "daemonset.yaml").read_text())
    assert (document["apiVersion"], document["kind"]) == ("apps/v1", "DaemonSet")
    spec = document["spec"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    pod = spec["template"]["spec"]
    assert pod["hostPID"] is True
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert set(security["capabilities"]["add"]) == NEEDED
    assert security["capabilities"]["drop"] == ["ALL"]
    assert not security.get("privileged")
    (variable,) = container["env"]
    arguments = [each.replace(f"$({variable['name']})", "10.0.0.7") for each in container["args"]]
    address, port = parsed(arguments)["listen"]
    assert address == "10.0.0.7"
    assert [each["containerPort"] for each in container["ports"]] == [port]
    assert spec["template"]["metadata"]["annotations"]["prometheus.io/port"] == str(port)
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}


def test_an_ephemeral_container_may_what_anyprobe_needs():
    document = yaml.safe_load((FOLDER / "ephemeral-container.yaml").read_text())
    assert set(document["securityContext"]["capabilities"]["add"]) == NEEDED
    assert document["securityContext"]["capabilities"]["drop"] == ["ALL"]

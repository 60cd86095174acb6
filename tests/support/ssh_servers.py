"""Hosts of a test: servers of SSH on loopback addresses, with keys and settings in a folder of their own."""

import os
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support.driver import wait_until

SSHD = shutil.which("sshd", path="/usr/sbin:/sbin:/usr/bin:/usr/local/sbin")
FIRST = 2
"""The last part of the first host's address: 127.0.0.2."""


def free_port(address):
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


class Fleet:
    """Servers by name, and the environment in which a client knows them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers = {}
        self.settings = []
        keys = folder / "home/.ssh"
        keys.mkdir(parents=True, mode=0o700)
        for name in ("id_ed25519", "../../host_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name)], check=True)
        self.environment = {**os.environ, "HOME": str(folder / "home")}
        self.environment.pop("SSH_AUTH_SOCK", None)

    @contextmanager
    def server(self, name, variables, *, keys="home/.ssh/id_ed25519.pub"):
        """Start a server whose commands have some variables, ``PATH`` above all."""
        address = f"127.0.0.{FIRST + len(self.servers)}"
        port = free_port(address)
        file = self.folder / f"{name}.conf"
        given = " ".join(f'"{key}={value}"' for key, value in variables.items())
        file.write_text(
            f"ListenAddress {address}\nPort {port}\nHostKey {self.folder}/host_key\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {self.folder}/{keys}\nStrictModes no\nPasswordAuthentication no\n"
            f"KbdInteractiveAuthentication no\nSetEnv {given}\n"
        )
        self.settings.append(
            f"Host {name}\n HostName {address}\n Port {port}\n IdentityFile {self.folder}/home/.ssh/id_ed25519\n"
            f" UserKnownHostsFile {self.folder}/known_hosts\n"
        )
        public = (self.folder / "host_key.pub").read_text()
        with (self.folder / "known_hosts").open("a") as known:
            known.write(f"[{address}]:{port} {public}")
        (self.folder / "home/.ssh/config").write_text("".join(self.settings))
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", exist_ok=True)  # which sshd asks for
        with (
            (self.folder / f"{name}.log").open("w") as log,
            subprocess.Popen([SSHD, "-D", "-e", "-f", str(file)], stderr=log, stdin=subprocess.DEVNULL) as server,
        ):
            try:
                wait_until(lambda: answers(address, port), f"sshd {name} listens")
                self.servers[name] = server.pid
                yield server
            finally:
                server.kill()

    def connections(self, name):
        """Return the processes that serve a host's connections."""
        return [
            int(pid)
            for pid in Path(f"/proc/{self.servers[name]}/task/{self.servers[name]}/children").read_text().split()
        ]


def answers(address, port):
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


@contextmanager
def fleet(folder, hosts):
    """Start servers; ``hosts``: the settings of each by its name."""
    with ExitStack() as stack:
        found = Fleet(folder)
        for name, settings in hosts.items():
            stack.enter_context(found.server(name, **settings))
        yield found


def with_anyprobe(**variables):
    """Return the variables of a host on which there is anyprobe."""
    return {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", **variables}

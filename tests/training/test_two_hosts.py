"""Two hosts, played by two network namespaces that a virtual cable connects: one is lost and comes back, and the run ends well.

Needs root, iproute2 and the right to make network namespaces.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from training.small import set_options, tensors_of
from training.test_processes import torchrun

pytestmark = [pytest.mark.slow, pytest.mark.trains]

TIMEOUT = 600  # seconds; only a run that hangs takes as long
CHANGES = ("prune.epochs=3", "data.batch=96", "run.checkpoint_seconds=0")
NOTICE = ("--set", "run.timeout_seconds=20")  # after that, a host that does not answer is taken to be lost
FOUR = ("torch.distributed.run", "--standalone", "--nproc-per-node", "4")

# The second host stops working after the ninth step with gates, once; its processes wait there to be killed.
SCRIPT = """
import os, sys, time
from pathlib import Path
from gator.gates.pruner import Pruner
folder, real = Path(sys.argv.pop(1)), Pruner.step
def step(self, *, lr):
    real(self, lr=lr)
    if os.environ.get("HOST") == "2" and self.steps_taken == 9 and not (folder / "lost").exists():
        (folder / "ready").touch()
        time.sleep(10_000)
Pruner.step = step
from gator.cli.main import app
app()
"""


def ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Host:
    """A network namespace with one interface, and the processes in it."""

    def __init__(self, number: int, run: str) -> None:
        self.number, self.name, self.interface = number, f"gator-{run}-{number}", f"gator{run}{number}"
        self.address = f"10.77.31.{number}"
        ip("netns", "add", self.name)

    def plug(self) -> None:
        ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", self.interface)
        self.cable("up")
        ip("-n", self.name, "link", "set", "lo", "up")

    def cable(self, state: str) -> None:
        ip("-n", self.name, "link", "set", self.interface, state)

    def torchrun(self, endpoint: str, *args: str, log) -> subprocess.Popen:
        launcher = [
            "--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-id", "run",
            "--rdzv-endpoint", endpoint, "--rdzv-conf", f"is_host={int(self.number == 1)}", "--local-addr", self.address,
        ]  # fmt: skip
        here = os.environ | {
            "HOST": str(self.number), "GLOO_SOCKET_IFNAME": self.interface, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }  # fmt: skip
        command = ["ip", "netns", "exec", self.name, sys.executable, "-m", "torch.distributed.run", *launcher, *args]
        return subprocess.Popen(command, env=here, stdout=log, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        for number in ip("netns", "pids", self.name).split():
            os.kill(int(number), signal.SIGKILL)

    def remove(self) -> None:
        self.kill()
        ip("netns", "del", self.name)


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    if shutil.which("ip") is None:
        pytest.skip("needs the command ip (Debian: apt-get install iproute2)")
    run, made = f"{os.getpid() % 100_000:05d}", []
    try:
        try:
            made = [Host(1, run)]
            made.append(Host(2, run))
            one, two = made
            peer = ("peer", "name", two.interface, "netns", two.name)
            ip("link", "add", one.interface, "netns", one.name, "type", "veth", *peer)
            for host in made:
                host.plug()
            ip("netns", "exec", one.name, "true")
        except OSError as error:
            pytest.skip(f"network namespaces are not permitted here: {error}")
        yield one, two
    finally:
        for host in made:
            host.remove()


def test_a_run_survives_the_loss_of_a_host(hosts, tmp_path) -> None:
    """The lost host is unplugged before its processes are killed, so that nothing tells the other one: it has to notice."""
    one, two = hosts
    options = ("prune", "digits", *set_options(*CHANGES), "--resume", "auto", "--out")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    args = (f"{one.address}:29400", str(script), str(tmp_path), *options, str(tmp_path / "run"), *NOTICE)
    output = tmp_path / "output.txt"
    with output.open("w") as log:
        running = [host.torchrun(*args, log=log) for host in hosts]
        wait_for(tmp_path / "ready", running, output)
        (tmp_path / "lost").touch()
        two.cable("down")
        two.kill()
        running[1].wait(TIMEOUT)
        two.cable("up")
        running[1] = two.torchrun(*args, log=log)
        ended = [process.wait(TIMEOUT) for process in running]
    said = output.read_text()
    assert ended == [0, 0], said[-5000:]
    starts = [line for line in said.splitlines() if line.startswith(("no checkpoint", "resuming"))]
    assert starts[0] == "no checkpoint yet: starting from the beginning"
    assert starts[1].startswith("resuming from step ")
    whole = torchrun(*options, str(tmp_path / "whole"), folder=tmp_path, launcher=FOUR, code=SCRIPT)
    assert whole.returncode == 0, whole.stderr[-3000:]
    assert tensors_of(tmp_path / "run" / "round-1.safetensors") == tensors_of(tmp_path / "whole" / "round-1.safetensors")


def wait_for(file, running, output) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not file.exists():
        assert time.monotonic() < deadline, f"no {file.name} after {TIMEOUT} s: {output.read_text()[-3000:]}"
        assert all(process.poll() is None for process in running), output.read_text()[-5000:]
        time.sleep(0.1)

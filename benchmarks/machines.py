"""The tests that train, on stand-ins for other machines: other instruction sets, and one and two threads.

Another processor rounds differently, and after a hundred training steps that is another network. A test that trains has to
pass on every machine, so it is run here with the instructions that torch and oneDNN use restricted in several ways.

    python benchmarks/machines.py                      # all settings; more arguments go to pytest, such as -x or a path
    python benchmarks/machines.py --setting ATEN_CPU_CAPABILITY=default --threads 1
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
SETTINGS = ("ATEN_CPU_CAPABILITY=default", "ATEN_CPU_CAPABILITY=avx2", "ONEDNN_MAX_CPU_ISA=AVX2")
THREADS = (1, 2)


@dataclass(frozen=True)
class Outcome:
    """How the tests ended in one setting."""

    setting: str
    threads: int
    passed: int
    failed: tuple[str, ...]
    seconds: float

    def row(self) -> str:
        return f"| `{self.setting}` | {self.threads} | {self.passed} | {len(self.failed)} | {self.seconds:.0f} |"


def run(setting: str, threads: int, more: list[str]) -> Outcome:
    """The tests marked `trains` in a process of their own; what fails is explained on the terminal by pytest."""
    name, _, value = setting.partition("=")
    environment = os.environ | {name: value, "GATOR_TEST_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}  # no spinning
    with tempfile.TemporaryDirectory() as folder:
        # torch.compile does not tell kernels of one setting from those of another in its cache.
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / "inductor")
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-m", "trains", f"--junitxml={report}"]
        before = time.perf_counter()
        subprocess.run(
            [*command, "--hypothesis-profile=quick", *more], cwd=ROOT, env=environment, stdout=sys.stderr, check=False
        )
        seconds = time.perf_counter() - before
        if not report.is_file():
            raise SystemExit(f"pytest did not run with {setting} and {threads} threads")
        cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    passed = sum(len(case.findall("*")) == 0 for case in cases)
    return Outcome(setting, threads, passed, tuple(f"{case.get('classname')}::{case.get('name')}" for case in failed), seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", action="append", help="an environment variable and its value; again for more")
    parser.add_argument("--threads", action="append", type=int, help="a number of threads; again for more")
    options, more = parser.parse_known_args()
    print("| setting | threads | passed | failed | seconds |\n| --- | --- | --- | --- | --- |", flush=True)
    outcomes = []
    for setting in options.setting or SETTINGS:
        for threads in options.threads or THREADS:
            outcomes.append(run(setting, threads, more))
            print(outcomes[-1].row(), flush=True)
    for outcome in outcomes:
        for name in outcome.failed:
            print(f"\nfailed with {outcome.setting}, {outcome.threads} threads: {name}")
    sys.exit(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    main()

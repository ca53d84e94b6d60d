"""What rank 0 does for all ranks: every rank gets the result, and every rank is told of an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from gator.rank_zero import on_rank_zero

# The timeout of the process group turns a rank that waits for ever into one that fails.
SCRIPT = """
import datetime, json, sys
from torch import distributed as dist
from gator.errors import FileError, GatorError
from gator.rank_zero import on_rank_zero
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
rank, found = dist.get_rank(), []
for problem in (None, FileError("no room"), GatorError(), ValueError("odd"), KeyboardInterrupt(), SystemExit(3)):
    def action():
        assert rank == 0
        if problem is not None:
            raise problem
        return 7
    try:
        found.append(f"returned {on_rank_zero(action)}")
    except BaseException as error:
        found.append(f"raised {type(error).__name__}: {error}")
open(f"{sys.argv[1]}/rank-{rank}.json", "w").write(json.dumps(found))
dist.destroy_process_group()
"""


def test_every_rank_is_told(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(tmp_path)], env=environment, capture_output=True, text=True, check=False, timeout=600
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    assert first == [
        "returned 7",
        "raised FileError: no room",
        "raised GatorError: ",
        "raised ValueError: odd",
        "raised KeyboardInterrupt: ",
        "raised SystemExit: 3",
    ]
    assert second == [
        "returned 7",
        "raised RunError: no room",
        "raised RunError: rank 0 raised GatorError",
        "raised RunError: rank 0 raised ValueError: odd",
        "raised RunError: rank 0 raised KeyboardInterrupt",
        "raised RunError: rank 0 raised SystemExit: 3",
    ]


def test_a_single_process_calls_the_action_itself() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    assert on_rank_zero(lambda: 3) == 3
    with pytest.raises(KeyboardInterrupt):
        on_rank_zero(interrupt)

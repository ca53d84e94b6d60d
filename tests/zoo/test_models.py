"""Networks by name, and the published checkpoints in them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support import assert_masked_equals_cut, doubled, draw, randomised

import gator
from gator import zoo

WEIGHTS = Path(__file__).parents[3] / "shared" / "weights"


@pytest.mark.parametrize(
    ("depth", "parameters"), [(20, 269_722), (32, 464_154), (44, 658_586), (56, 853_018), (110, 1_727_962)]
)
def test_cifar_networks_have_the_published_size(depth: int, parameters: int) -> None:
    network = zoo.build(f"cifar:resnet{depth}")
    assert sum(p.numel() for p in network.model.parameters()) == parameters


@pytest.mark.parametrize("depth", [20, 56])
def test_published_checkpoints_fit(depth: int) -> None:
    file = WEIGHTS / f"cifar10-resnet{depth}.safetensors"
    if not file.exists():
        pytest.skip(f"{file} is not here")
    model = zoo.build(f"cifar:resnet{depth}").model
    report = model.load_state_dict(load_file(file), strict=False)
    assert not report.unexpected_keys
    assert all(name.endswith("num_batches_tracked") for name in report.missing_keys)


SMALL = (
    "torchvision:shufflenet_v2_x0_5", "torchvision:mnasnet0_5", "torchvision:squeezenet1_1", "torchvision:regnet_y_400mf",
    "torchvision:mobilenet_v3_small", "timm:levit_128s", "timm:edgenext_xx_small", "timm:ghostnet_050", "timm:pit_ti_224",
    "timm:convnextv2_atto",
)  # fmt: skip
SLOW = ("timm:xcit_nano_12_p16_224", "timm:res2net50_26w_4s", "timm:efficientvit_m0")


@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_the_smallest_and_oddest_of_the_zoo(name: str, torchvision) -> None:
    """The rest is in `make zoo`."""
    network = zoo.build(name)
    model = randomised(network.model)
    inputs = torch.randn(network.example_inputs.shape, dtype=torch.float64)
    graph = gator.trace(model, inputs)
    assert graph.prunable_share > 0.9
    small = assert_masked_equals_cut(model, inputs, graph, draw(graph, 0.5))
    assert gator.measure(small, inputs).params < 0.65 * graph.parameters


def hugging_face(kind: str, folder: Path) -> str:
    transformers = pytest.importorskip("transformers")
    options = {
        "bert": (
            transformers.BertConfig,
            {"intermediate_size": 64, "vocab_size": 99, "architectures": ["BertForSequenceClassification"]},
        ),
        "vit": (
            transformers.ViTConfig,
            {"intermediate_size": 64, "image_size": 32, "patch_size": 8, "architectures": ["ViTForImageClassification"]},
        ),
        "gpt2": (
            transformers.GPT2Config,
            {"n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": 99, "architectures": ["GPT2LMHeadModel"]},
        ),
    }
    config, extra = options[kind]
    common = {} if kind == "gpt2" else {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config(**common, **extra).save_pretrained(folder)
    return f"hf:{folder}"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", ["bert", "vit", "gpt2"])
def test_hugging_face_from_a_tiny_config(kind: str, tmp_path, torchvision) -> None:
    network = zoo.build(hugging_face(kind, tmp_path))
    model, inputs = randomised(network.model), doubled(network.example_inputs)
    graph = gator.trace(model, inputs)
    assert graph.prunable_share > 0.9
    widths = sorted({e.width for e in graph.edges})
    assert {4, 32} <= set(widths)  # heads and the residual stream
    small = assert_masked_equals_cut(model, inputs, graph, draw(graph, 0.5))
    assert small(**inputs).logits.shape == model(**inputs).logits.shape


def test_a_network_from_a_file(tmp_path) -> None:
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\n"
        "def both():\n    return torch.nn.Linear(3, 2), torch.zeros(1, 3)\n"
        "def model():\n    return torch.nn.Linear(3, 2)\n"
        "def wrong():\n    return 3\n"
        "def needs(size):\n    return size\n"
    )
    (tmp_path / "beside.py").write_text("import torch\nmodel = torch.nn.Linear(3, 2)\n")
    (tmp_path / "user.py").write_text("from beside import model\ndef make():\n    return model\n")
    (tmp_path / "broken.py").write_text("import nothing_like_this\n")
    assert zoo.build(f"{tmp_path}/user.py:make", example_inputs=torch.zeros(1, 3)).model.in_features == 3
    assert zoo.build(f"{file}:both").example_inputs.shape == (1, 3)
    assert zoo.build(f"{file}:model", example_inputs=torch.zeros(2, 3)).example_inputs.shape == (2, 3)
    for name, words in [
        (f"{file}:model", "without example inputs"),
        (f"{file}:bth", "has no 'bth'; did you mean both"),
        (f"{file}:wrong", "returned int"),
        (f"{file}:needs", r"raised TypeError: needs\(\) missing 1 required"),
        (f"{tmp_path}/broken.py:make", "cannot be imported: ModuleNotFoundError"),
        (f"{file}", "names a file but no function"),
        (f"{tmp_path}/other.py:model", "there is no file"),
    ]:
        with pytest.raises(gator.ModelNameError, match=words):
            zoo.build(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cifar:resnet21", "cifar has no 'resnet21'; did you mean resnet"),
        ("resnet50", "expected cifar:NAME, digits:NAME, torchvision:NAME"),
        ("torchvision:resnet5", "torchvision has no 'resnet5'; did you mean resnet50"),
        ("timm:levit_128", None),
        ("timm:levit", "timm has no 'levit'"),
        ("hf:/nowhere", "there is no config.json"),
    ],
)
def test_unknown_names_get_a_hint(name: str, words: str | None, torchvision) -> None:
    if words is None:
        assert zoo.build(name).name == name
        return
    with pytest.raises(gator.ModelNameError, match=words):
        zoo.build(name)


def test_a_missing_extra_is_named(monkeypatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(gator.MissingExtraError, match=r"pip install 'torch-gator\[zoo\]'"):
        zoo.build("timm:levit_128")


def test_published_weights_with_another_number_of_classes(torchvision, monkeypatch) -> None:
    """All layers but the classifier get the published weights, as timm does it."""
    published = torchvision.models.get_model("squeezenet1_1", weights=None).state_dict()
    kind = torchvision.models.get_model_weights("squeezenet1_1")
    monkeypatch.setattr(kind, "get_state_dict", lambda self, **_: published)
    state = zoo.build("torchvision:squeezenet1_1", classes=3, pretrained="DEFAULT").model.state_dict()
    assert state["classifier.1.weight"].shape[0] == 3
    assert all(torch.equal(state[key], published[key]) for key in state if not key.startswith("classifier.1"))
    with pytest.raises(gator.ModelNameError, match="cannot be built with weights 'NONE'"):
        zoo.build("torchvision:squeezenet1_1", classes=3, pretrained="NONE")

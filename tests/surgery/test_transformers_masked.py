"""Networks of transformers with padded inputs: the cut network computes what the masked one computes, for other masks too.

They are traced with one padding and run with another, in eval mode and in train mode with dropout off. Those that compute norms
in float32 whatever their weights are agree to float32; with everything raised to float64 they agree like any other network.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from support import doubled, draw, gap, randomised, run
from torch import Tensor, nn

import gator
from gator.graph.outputs import flattened
from gator.surgery.precision import InFloat64

SIZES = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 20,
    "max_position_embeddings": 32,
}
DECODER = {**SIZES, "num_key_value_heads": 2, "pad_token_id": 0}
PAIR = {
    "vocab_size": 40,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def padded(side: str, length: int = 8) -> Tensor:
    """A mask of two examples of different lengths, padded on one side."""
    lengths = torch.tensor([length - 3, length - 1])
    mask = (torch.arange(length) < lengths[:, None]).long()
    return mask if side == "right" else mask.flip(1)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def text(side: str) -> dict[str, Tensor]:
    return {"input_ids": torch.arange(16).reshape(2, 8) % 37 + 3, "attention_mask": padded(side)}


def text_to_text(side: str) -> dict[str, Tensor]:
    return {
        **text(side),
        "decoder_input_ids": torch.arange(12).reshape(2, 6) + 3,
        "decoder_attention_mask": padded("right", 6),
    }


def speech_to_text(side: str) -> dict[str, Tensor]:
    return {
        "input_features": noise(2, 8, 40),
        "decoder_input_ids": torch.arange(12).reshape(2, 6) + 3,
        "decoder_attention_mask": padded(side, 6),
    }


def speech(side: str) -> dict[str, Tensor]:
    """The network uses the lengths alone, so the other padding has other lengths."""
    mask = padded("right") if side == "right" else padded("right").flip(0)
    return {"input_values": noise(2, 400), "attention_mask": mask.repeat_interleave(50, 1)}


def picture(side: str) -> dict[str, Tensor]:
    mask = padded(side).repeat_interleave(8, 1)[:, None].repeat(1, 64, 1)
    return {"pixel_values": noise(2, 3, 64, 64), "pixel_mask": mask}


def bert(t: Any) -> nn.Module:
    return t.BertForSequenceClassification(quiet(t.BertConfig(**SIZES)))


def distilbert(t: Any) -> nn.Module:
    sizes = {"vocab_size": 40, "dim": 24, "hidden_dim": 20, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 32}
    return t.DistilBertForSequenceClassification(quiet(t.DistilBertConfig(**sizes)))


def roberta(t: Any) -> nn.Module:
    return t.RobertaForSequenceClassification(quiet(t.RobertaConfig(**SIZES, pad_token_id=1)))


def deberta(t: Any) -> nn.Module:
    kinds = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4, "norm_rel_ebd": "layer_norm"}
    return t.DebertaV2ForSequenceClassification(quiet(t.DebertaV2Config(**SIZES, **kinds, share_att_key=True)))


def llama(t: Any) -> nn.Module:
    return t.LlamaForCausalLM(quiet(t.LlamaConfig(**DECODER)))


def gpt2(t: Any) -> nn.Module:
    return t.GPT2LMHeadModel(quiet(t.GPT2Config(vocab_size=40, n_embd=24, n_layer=2, n_head=4, n_positions=32)))


def t5(t: Any) -> nn.Module:
    sizes = {"vocab_size": 40, "d_model": 24, "d_kv": 6, "d_ff": 20, "num_layers": 2, "num_heads": 4}
    return t.T5ForConditionalGeneration(quiet(t.T5Config(**sizes, decoder_start_token_id=0)))


def bart(t: Any) -> nn.Module:
    return t.BartForConditionalGeneration(quiet(t.BartConfig(**PAIR, **TOKENS, max_position_embeddings=32)))


def whisper(t: Any) -> nn.Module:
    sizes = {"max_source_positions": 20, "max_target_positions": 16, "num_mel_bins": 8}
    return t.WhisperForConditionalGeneration(quiet(t.WhisperConfig(**PAIR, **TOKENS, **sizes)))


def wav2vec2(t: Any) -> nn.Module:
    sizes = {name: size for name, size in SIZES.items() if name != "max_position_embeddings"}
    convs = {"conv_dim": (12, 12), "conv_stride": (4, 4), "conv_kernel": (8, 4), "feat_extract_norm": "layer"}
    positions = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "do_stable_layer_norm": True}
    return t.Wav2Vec2ForCTC(quiet(t.Wav2Vec2Config(**sizes, **convs, **positions, apply_spec_augment=False)))


def detr(t: Any) -> nn.Module:
    backbone = t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], out_features=["stage2"])
    sizes = {name: size for name, size in PAIR.items() if name != "vocab_size"}
    own = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "backbone_config": backbone}
    return t.DetrForObjectDetection(quiet(t.DetrConfig(**sizes, **own, num_queries=5)))


def mixtral(implementation: str) -> Callable[[Any], nn.Module]:
    def build(t: Any) -> nn.Module:
        config = t.MixtralConfig(**DECODER, num_local_experts=4, experts_implementation=implementation)
        return t.MixtralForCausalLM(quiet(config))

    return build


def mamba2(t: Any) -> nn.Module:
    sizes = {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 2, "num_heads": 6, "head_dim": 8, "state_size": 4}
    return t.Mamba2ForCausalLM(quiet(t.Mamba2Config(**sizes, n_groups=2, expand=2, conv_kernel=4, chunk_size=4)))


def lively(model: nn.Module) -> nn.Module:
    """With weights so large that masks and removed channels show: transformers starts with nearly zero ones."""
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                scale = 1.5 * parameter[0].numel() ** -0.5
                parameter.copy_(scale * torch.randn(parameter.shape, generator=random, dtype=parameter.dtype))
    return model


def quiet(config: Any) -> Any:
    """The config with dropout and LayerDrop off."""
    for name, value in vars(config).items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    return config


NETWORKS: dict[str, tuple[Callable[[Any], nn.Module], Callable[[str], dict[str, Tensor]], list[str]]] = {
    "bert": (bert, text, []),
    "distilbert": (distilbert, text, []),
    "roberta": (roberta, text, []),
    "deberta": (deberta, text, []),
    "llama": (llama, text, ["logits"]),
    "gpt2": (gpt2, text, ["logits"]),
    "t5": (t5, text_to_text, ["logits"]),
    "bart": (bart, text_to_text, ["logits"]),
    "whisper": (whisper, speech_to_text, ["logits"]),
    "wav2vec2": (wav2vec2, speech, []),
    "detr": (detr, picture, ["logits", "pred_boxes"]),
    "mixtral_grouped": (mixtral("grouped_mm"), text, ["logits"]),
    "mixtral_batched": (mixtral("batched_mm"), text, ["logits"]),
    "mixtral_loop": (mixtral("eager"), text, ["logits"]),
    "mamba2": (mamba2, text, ["logits"]),
}

QUICK = ("bert", "llama", "bart", "wav2vec2", "mixtral_loop")


@pytest.fixture(scope="module")
def transformers(torchvision: Any) -> Any:
    return pytest.importorskip("transformers")


def leaves(result: Any, outputs: list[str]) -> dict[str, Tensor]:
    flat = flattened(result)
    named = zip(flat.names, flat.leaves, flat.chosen(outputs), strict=True)
    return {name: leaf for name, leaf, chosen in named if chosen and isinstance(leaf, Tensor)}


@pytest.mark.filterwarnings("default")  # those of transformers about missing kernels
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS])
def test_masked_equals_cut_for_two_paddings(name: str, transformers: Any) -> None:
    build, inputs_of, outputs = NETWORKS[name]
    model = lively(randomised(build(transformers)))
    inputs = {side: doubled(inputs_of(side)) for side in ("right", "left")}
    graph = gator.trace(model, inputs["right"], outputs=outputs)
    assert graph.unsupported == ()
    kept = draw(graph, 0.5)
    with gator.masked(model, graph, kept):
        one, other = (leaves(run(model, given), outputs) for given in inputs.values())
    assert gap(one, other) > 1e-3  # the mask matters
    assert name == "mixtral_grouped" or gap(one, leaves(run(model, inputs["right"]), outputs)) > 1e-3  # and so does the cut
    forms = [gator.cut(model, graph, kept), gator.cut(model, graph, kept, keep_class=False)]
    assert sum(p.numel() for p in forms[0].parameters()) < 0.7 * sum(p.numel() for p in model.parameters())
    # torch multiplies groups of experts in single and half precision only, so the class itself does not run in float64.
    eager = name != "mixtral_grouped"
    for training in (False, True):
        for network in (model, *forms):
            network.train(training)
        for given in inputs.values():
            for precision, tolerance in ((nullcontext(), 1e-5), (InFloat64(), 1e-8)):
                with precision:
                    whole = leaves(run(model, given), outputs) if eager else {}
                    with gator.masked(model, graph, {}):
                        # A constant that forward makes in float32 is recorded in float32, also where the eager one is raised.
                        assert not eager or gap(whole, leaves(run(model, given), outputs)) <= max(tolerance, 1e-7)
                    with gator.masked(model, graph, kept):
                        expected = leaves(run(model, given), outputs)
                    for small in forms:
                        assert gap(expected, leaves(run(small, given), outputs)) <= tolerance


def test_experts_are_computed_as_transformers_does(transformers: Any) -> None:
    """In float32, the only precision here in which torch multiplies groups; the choice of the user stays."""
    for implementation in ("grouped_mm", "batched_mm", "eager"):
        model = lively(mixtral(implementation)(transformers)).eval()
        graph = gator.trace(model, text("right"), outputs=["logits"])
        assert model.get_experts_implementation()[""] == implementation
        assert {"model.layers.0.mlp.experts", "model.layers.1.mlp.experts"} <= {edge.name for edge in graph.edges}
        expected = run(model, text("left")).logits
        with gator.masked(model, graph, {}):
            assert gap(expected, run(model, text("left")).logits) <= 1e-4
        inner = {edge.name: range(8) for edge in graph.edges if "experts" in edge.name}
        small = gator.cut(model, graph, inner)
        assert type(small) is type(model)
        with gator.masked(model, graph, inner):
            assert gap(run(model, text("left")).logits, run(small, text("left")).logits) <= 1e-4


@pytest.mark.parametrize("build", [llama, pytest.param(t5, marks=pytest.mark.slow)])
def test_caches_are_outputs_like_any_other(build: Callable[[Any], nn.Module], transformers: Any) -> None:
    model = lively(randomised(build(transformers)))
    inputs = text("right") if build is llama else text_to_text("right")
    graph = gator.trace(model, inputs)
    (hint,) = [note for note in graph.notes if "past_key_values" in note]
    assert "trace(..., outputs=['logits'])" in hint
    kept = draw(graph, 0.5)
    with gator.masked(model, graph, kept):
        expected = run(model, inputs)
    assert type(expected.past_key_values) is type(run(model, inputs).past_key_values)
    for form in (None, False):
        found = run(gator.cut(model, graph, kept, keep_class=form), inputs)
        assert sum("past_key_values" in name for name in leaves(found, [])) >= 4
        assert gap(leaves(expected, []), leaves(found, [])) <= 1e-5


def test_a_cut_class_generates_with_a_smaller_cache(transformers: Any) -> None:
    model = lively(randomised(llama(transformers)))
    graph = gator.trace(model, text("left"), outputs=["logits"])
    small = gator.cut(model, graph, {edge.name: range(edge.width // 2) for edge in graph.edges}, keep_class=True)
    keys, smaller = (run(network, text("left")).past_key_values.layers[0].keys for network in (model, small))
    assert smaller.shape[1] == keys.shape[1] // 2
    one, other = (small.generate(**text("left"), max_new_tokens=4, do_sample=False, use_cache=use) for use in (True, False))
    assert torch.equal(one, other)


def test_returned_hidden_states_fix_the_residual_stream(transformers: Any) -> None:
    vision = {"image_size": 16, "patch_size": 8, **{name: SIZES[name] for name in SIZES if name.startswith(("hidden", "num"))}}
    config = transformers.CLIPConfig(
        text_config={**SIZES, **TOKENS}, vision_config={**vision, "intermediate_size": 20}, projection_dim=12
    )
    model = lively(randomised(transformers.CLIPModel(quiet(config))))
    inputs = doubled({**text("right"), "pixel_values": noise(2, 3, 16, 16)})
    outputs = ["logits_per_image", "logits_per_text"]
    graph = gator.trace(model, inputs)
    (hint,) = graph.notes
    assert "text_model_output" in hint
    assert f"trace(..., outputs={outputs})" in hint
    assert hint in str(graph)
    left = []
    for graph in (graph, gator.trace(model, inputs, outputs=outputs)):
        kept = {edge.name: range(edge.width // 2) for edge in graph.edges}
        small = gator.cut(model, graph, kept)
        left.append(sum(p.numel() for p in small.parameters()) / sum(p.numel() for p in model.parameters()))
        with gator.masked(model, graph, kept):
            expected = leaves(run(model, inputs), outputs)
        assert gap(expected, leaves(run(small, inputs), outputs)) <= 1e-8
    assert left[0] > 0.6
    assert left[1] < 0.4
    assert not graph.notes


def test_layers_that_are_dropped_at_random_are_kept_and_named(transformers: Any) -> None:
    model = randomised(bart(transformers))
    for module in model.modules():
        if hasattr(module, "layerdrop"):
            module.layerdrop = 0.1
    graph = gator.trace(model, text_to_text("right"))
    (note,) = [note for note in graph.notes if "random draw" in note]
    assert "in train mode a random draw leaves out model.decoder.layers.0" in note
    assert len({call.module for call in graph.train.program.calls}) >= len({call.module for call in graph.eval.program.calls})


def test_random_masking_of_features_is_refused_or_named(transformers: Any) -> None:
    """Wav2Vec2 masks parts of its input in training, with NumPy and with the lengths of the examples."""
    model = wav2vec2(transformers)
    model.config.apply_spec_augment, model.config.mask_time_prob = True, 0.5
    with pytest.raises(gator.TraceError, match=r"reads the values of a tensor[\s\S]*happens in train mode only"):
        gator.trace(model, speech("right"))
    graph = gator.trace(model, {"input_values": noise(2, 400)})
    assert any("in train mode the network draws random numbers with Python's random or with NumPy" in n for n in graph.notes)

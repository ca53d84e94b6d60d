"""The Trainer of Hugging Face transformers: a callback prunes a small BERT on sentences of different lengths.

    pip install 'torch-gator[hf]'
    python examples/transformers_bert.py

The task is made up: does the word "not" stand before the word "good"? Sentences are padded to the longest one of a batch, as
with real text, and the pruned model gives the same answer for a sentence with and without padding.
"""

import random
import tempfile

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

import gator
from gator.integrations.transformers import PruneCallback, load_pruned, save_pruned

PAD, NOT, GOOD, WORDS = 0, 1, 2, 40


def sentences(count: int, seed: int) -> list[dict[str, object]]:
    generator = random.Random(seed)
    found = []
    for index in range(count):
        words = [generator.randrange(3, WORDS) for _ in range(generator.randrange(4, 16))]
        first, second = sorted(generator.sample(range(len(words)), 2))
        words[first], words[second] = (NOT, GOOD) if index % 2 else (GOOD, NOT)
        found.append({"input_ids": words, "labels": index % 2})
    return found


def padded(examples: list[dict]) -> dict[str, Tensor]:
    """A batch: as long as its longest sentence, with a mask over the padding."""
    longest = max(len(each["input_ids"]) for each in examples)
    ids = torch.tensor([each["input_ids"] + [PAD] * (longest - len(each["input_ids"])) for each in examples])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": torch.tensor([e["labels"] for e in examples])}


set_seed(0)
config = BertConfig(vocab_size=WORDS, hidden_size=64, num_hidden_layers=2, num_attention_heads=8, intermediate_size=256)
model = BertForSequenceClassification(config)
batch = padded(sentences(1, seed=2))
inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
dense = gator.measure(model, inputs).macs

with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        folder, max_steps=400, per_device_train_batch_size=32, learning_rate=1e-3, warmup_steps=20, logging_steps=50,
        report_to="none", use_cpu=True, disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    trainer = Trainer(
        model, args, data_collator=padded, train_dataset=sentences(2000, seed=0), eval_dataset=sentences(400, seed=1),
        callbacks=[PruneCallback(target=0.6)],
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())},
    )  # fmt: skip
    trainer.train()
    accuracy = trainer.evaluate()["eval_accuracy"]
    save_pruned(trainer.model, f"{folder}/small")
    again = load_pruned(f"{folder}/small", BertForSequenceClassification)

small = gator.measure(again, inputs).macs
print(f"MACs {dense:,} -> {small:,}; accuracy {accuracy:.3f}")

short, long = sentences(20, seed=3)[0], max(sentences(20, seed=3), key=lambda each: len(each["input_ids"]))
with torch.no_grad():
    alone = again(**padded([short])).logits[0]
    beside_a_longer_one = again(**padded([short, long])).logits[0]
assert small <= 0.6 * dense
assert accuracy > 0.8
assert torch.allclose(alone, beside_a_longer_one, atol=1e-4)

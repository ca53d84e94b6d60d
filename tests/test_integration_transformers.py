"""The callback for the Trainer of transformers: runs with default settings, resumes, saves and loads."""

from __future__ import annotations

import pytest
import torch

import gator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def library(torchvision):
    pytest.importorskip("accelerate")
    from gator.integrations import transformers

    return transformers


class Sentences(torch.utils.data.Dataset):
    """Token 2 in a sentence means class 1; real padding."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.items = []
        for index in range(64):
            length = int(torch.randint(4, 10, (1,), generator=generator))
            ids = torch.randint(3, 30, (length,), generator=generator)
            if index % 2:
                ids[length // 2] = 2
            padded = torch.nn.functional.pad(ids, (0, 10 - length))
            self.items.append({"input_ids": padded, "attention_mask": (padded > 0).long(), "labels": torch.tensor(index % 2)})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def bert():
    from transformers import BertConfig, BertForSequenceClassification, set_seed

    set_seed(0)
    return BertForSequenceClassification(
        BertConfig(vocab_size=30, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    )


def trainer(folder, callbacks, model=None, eval_dataset=None, **settings):
    from transformers import Trainer, TrainingArguments

    settings = {
        "max_steps": 16,
        "save_steps": 4,
        "per_device_train_batch_size": 16,
        "logging_steps": 4,
        "use_cpu": True,
        "report_to": "none",
        **settings,
    }
    args = TrainingArguments(str(folder), disable_tqdm=True, learning_rate=1e-3, **settings)
    return Trainer(model or bert(), args, train_dataset=Sentences(), eval_dataset=eval_dataset, callbacks=callbacks)


def test_a_trainer_prunes_and_the_model_is_saved_and_loaded(library, tmp_path):
    prune = library.PruneCallback(0.6, gated=0.6)
    run = trainer(tmp_path, [prune])
    one = {key: value[None] for key, value in Sentences()[0].items() if key != "labels"}
    dense = gator.measure(run.model, one).macs
    run.train()
    small = run.model
    assert prune.pruner.cost_left <= prune.pruner.target
    assert type(small).__name__ == "BertForSequenceClassification"
    assert gator.measure(small, one).macs <= 0.6 * dense
    assert not small._forward_pre_hooks
    assert any("cost_left" in entry for entry in run.state.log_history)
    assert run.evaluate(Sentences())["eval_loss"] > 0
    library.save_pruned(small, tmp_path / "small")
    again = library.load_pruned(tmp_path / "small", type(small))
    batch = {key: value[None] for key, value in Sentences()[0].items() if key != "labels"}
    with torch.no_grad():
        assert torch.equal(again(**batch).logits, small.eval()(**batch).logits)


def test_a_resumed_run_ends_with_the_same_network(library, tmp_path):
    whole = trainer(tmp_path / "whole", [library.PruneCallback(0.6, gated=0.6)])
    whole.train()

    class Stop(library.transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 8:
                raise KeyboardInterrupt

    interrupted = trainer(tmp_path / "parts", [library.PruneCallback(0.6, gated=0.6), Stop()])
    with pytest.raises(KeyboardInterrupt):
        interrupted.train()
    sizes = [sum(p.numel() for p in run.model.parameters()) for run in (interrupted, trainer(tmp_path / "new", []))]
    assert sizes[0] < 0.95 * sizes[1]  # it had shrunk by then
    resumed = trainer(tmp_path / "parts", [library.PruneCallback(0.6, gated=0.6)])
    resumed.train(resume_from_checkpoint=True)
    one, other = whole.model.state_dict(), resumed.model.state_dict()
    assert [t.shape for t in one.values()] == [t.shape for t in other.values()]
    assert gator.plan(whole.model) == gator.plan(resumed.model)
    assert all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)


def test_bad_use_is_explained(library, tmp_path):
    with pytest.raises(gator.GatorError, match="a second PruneCallback"):
        trainer(tmp_path / "twice", [library.PruneCallback(0.6, gated=0.6), library.PruneCallback(0.6, gated=0.6)]).train()
    with pytest.raises(gator.GatorError, match="label_smoothing_factor"):
        trainer(tmp_path / "smooth", [library.PruneCallback(0.6, gated=0.6)], label_smoothing_factor=0.1).train()
    plain = trainer(tmp_path / "plain", [], max_steps=4)
    plain.train()
    with pytest.raises(gator.FileError, match="saved without gates"):
        trainer(tmp_path / "plain", [library.PruneCallback(0.6, gated=0.6)]).train(resume_from_checkpoint=True)
    with pytest.raises(gator.FileError, match="save_pruned"):
        library.load_pruned(tmp_path / "plain", type(plain.model))
    with pytest.raises(gator.GatorError, match="gated=2"):
        library.PruneCallback(gated=2)
    best = trainer(tmp_path / "best", [library.PruneCallback(0.6, gated=0.6, shrink=True)])
    best.args.load_best_model_at_end = True
    with pytest.raises(gator.GatorError, match="load_best_model_at_end=False"):
        best.train()


def test_a_model_that_is_replaced_is_noticed(library, tmp_path):
    class Replace(library.transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            run.callback_handler.model = bert()

    run = trainer(tmp_path, [library.PruneCallback(0.6, gated=0.6), Replace()])
    with pytest.raises(gator.GatorError, match="replaced its model"):
        run.train()


def test_a_checkpoint_of_another_plan_is_refused(library, tmp_path):
    trainer(tmp_path / "one", [library.PruneCallback(0.6, gated=0.6)], max_steps=12).train()
    other = trainer(tmp_path / "two", [library.PruneCallback(0.5)])
    other.train()
    again = trainer(tmp_path / "one", [library.PruneCallback(0.6, gated=0.6)], model=other.model)
    with pytest.raises(gator.FileError, match="of another plan"):
        again.train(resume_from_checkpoint=True)


def test_the_best_model_is_one_at_the_target(library, tmp_path):
    """The first evaluation, of the dense network, is the best by far, and does not count."""

    class Worse(library.transformers.TrainerCallback):
        def on_evaluate(self, args, state, control, metrics, **_):
            metrics["eval_loss"] = float(state.global_step)

    settings = {"eval_strategy": "steps", "eval_steps": 4, "load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}
    prune = library.PruneCallback(0.6, gated=0.6)
    run = trainer(tmp_path, [prune, Worse()], eval_dataset=Sentences(), **settings)
    run.train()
    reached = prune.pruner.budget.schedule.last_step
    assert int(run.state.best_model_checkpoint.rpartition("-")[2]) >= reached
    assert prune.pruner.cost_left <= prune.pruner.target


def test_gradient_checkpointing_may_be_on_from_the_start(library, tmp_path):
    prune = library.PruneCallback(0.6, gated=0.6)
    model = bert()
    model.activation_checkpointing_enable({"use_reentrant": False})
    trainer(tmp_path, [prune], model=model).train()
    assert prune.pruner.finished

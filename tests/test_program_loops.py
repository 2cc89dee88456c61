"""Proves which training loops of a program's own are plain, and what is counted of them."""

import re
from pathlib import Path

import pytest
from framework_cases import checked

from memplan.frameworks.checks.checking import Checked, check_all

LOOP = """\
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer
def train(steps=2):
    accelerator = Accelerator({accelerator})
    tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-0.5B")
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype=torch.float32)
    rows = [tokenizer(text, truncation=True, max_length=1024) for text in texts]
    loader, held = DataLoader(rows, batch_size=4), DataLoader(rows, 8)
    optimizer = {optimizer}(model.parameters(), lr=1e-5)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, batch in enumerate(loader):
        {forward}
        {loss}
        optimizer.step()
        optimizer.zero_grad()
train()
"""
PLAIN = {
    "accelerator": 'mixed_precision="bf16"', "optimizer": "torch.optim.AdamW", "forward": "outputs = model(**batch)",
    "loss": "accelerator.backward(outputs.loss)",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def looped(**parts: str) -> Checked:
    """The answer of the loop with these parts."""
    return checked("train.py", LOOP.format(**PLAIN | parts))


def test_a_plain_loop_is_counted_as_it_stands() -> None:
    job = looped().job
    keys = ("trainer", "method", "batch_size", "eval_batch_size", "sequence_length", "precision", "optimizer_impl")
    assert [job[key] for key in keys] == ["transformers", "sft", 4, 8, 1024, "bf16-amp", "foreach"]
    assert job["hold_outputs"]
    assert not looped(forward="loss = model(**batch).loss", loss="loss.backward()").job.get("hold_outputs")


@pytest.mark.parametrize(
    "loss",
    [
        "loss = outputs[0] / steps; loss.backward()",
        "loss = outputs.loss.mean(); loss /= len(batch); accelerator.backward(loss)",
        "scaler.scale(outputs['loss']).backward()",
    ],
)
def test_a_share_of_the_models_own_loss_is_its_loss(loss: str) -> None:
    assert looped(loss=loss).fits == "yes"


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"loss": "outputs.loss.backward(retain_graph=True)"}, "program's own, which"),
        ({"loss": "loss = drawn(outputs.logits); loss.backward()"}, "which is not read: drawn"),
        ({"loss": "loss = outputs.loss * 2; (loss + 1).backward(); kept.append(outputs.logits)"}, "append of a large"),
        ({"loss": "outputs.loss.backward(); metric(outputs.logits)"}, "logits (model) is not counted"),
        ({"loss": "outputs.loss.backward(); metric(outputs)"}, "outputs (model) is not counted"),
        ({"loss": "outputs.loss.backward(); best = outputs['logits'].max()"}, "logits (model) is not counted"),
        ({"loss": "outputs.loss.backward(); best = Soft()(outputs.logits)"}, "logits (model) is not counted"),
        ({"loss": "outputs.loss.backward(); model.generate(x)"}, "generate (model) is not counted"),
        ({"optimizer": "Mine"}, "optimizer is not known"),
        ({"accelerator": 'mixed_precision="fp8"'}, "precision is not known"),
    ],
)
def test_what_is_more_than_a_plain_loop_is_unclear(parts: dict[str, str], told: str) -> None:
    found = looped(**parts)
    assert found.fits == "unclear"
    assert told in found.text


BOUNDS = [
    ("loss = torch.nn.functional.cross_entropy(outputs.logits.float(), batch['labels']); loss.backward()", 1, 20),
    ("loss = outputs.loss * outputs.logits.mean(); loss.backward()", 1, 20),
    ("loss = outputs.loss + model(**batch).loss; loss.backward()", 2, 10),
    ("more = tokenizer(batch['text']).to('cuda'); (outputs.loss + model(**more).logits.mean()).backward()", 2, 8),
]


@pytest.mark.parametrize(("loss", "forwards", "logits"), BOUNDS)
def test_a_loss_of_the_loops_own_is_counted_from_above(loss: str, forwards: int, logits: int) -> None:
    """With what its names hold from the turn before, whose graph has run back."""
    found = looped(loss=loss)
    assert (found.fits, found.at_most) == ("yes", True), found.text
    assert found.job["own_loss"] == {"hidden": found.job["own_loss"]["hidden"], "layers": False, "logits": logits,
                                     "forwards": forwards}  # fmt: skip
    assert found.job["batch_size"] == 4 * forwards


def test_a_loop_that_throws_its_gradients_away_is_no_training() -> None:
    looks = "def looks(model, batch):\n    model(**batch).loss.backward()\n    model.zero_grad()\n"
    text = (
        LOOP.format(**PLAIN)
        .replace("def train(", f"{looks}def train(")
        .replace("    for step,", "    looks(model, rows[0])\n    for step,")
    )
    found = checked("train.py", text)
    assert (found.fits, found.job["batch_size"]) == ("yes", 4), found.text


def test_what_an_outer_loop_makes_is_not_passed_by() -> None:
    """Logits of a reference that wait while an inner loop trains are beside what that holds."""
    inner = "kept = model(**batch).logits\n        for _ in range(2):\n            outputs = model(**batch)"
    loss = "    loss = outputs.loss + (outputs.logits - kept).mean()\n            loss.backward()"
    found = looped(forward=inner, loss=loss)
    assert found.fits == "unclear"
    assert "kept, which a forward outside of the loop makes" in found.text


def test_the_argmax_of_logits_is_small() -> None:
    counts = "class Counts:\n    def __call__(self, logits):\n        return (logits.argmax(-1) == 1).sum().item()\n"
    text = LOOP.format(**PLAIN | {"loss": "outputs.loss.backward(); counts = Counts(); counts(outputs.logits)"})
    assert checked("train.py", counts + text).fits == "yes"
    assert checked("train.py", counts.replace("logits.argmax", "logits.float().argmax") + text).fits == "unclear"
    assert looped(loss="outputs.loss.backward(); right = outputs.logits.argmax(-1) == 1").fits == "yes"


def test_gradients_that_wait_through_a_forward_are_counted() -> None:
    once = looped(accelerator="")
    kept = looped(accelerator="", forward="optimizer.zero_grad() if step % 2 else None; outputs = model(**batch)")
    assert once.job["gradient_accumulation_steps"] == kept.job["gradient_accumulation_steps"] == 1
    late = LOOP.format(**PLAIN | {"accelerator": ""}).replace(
        "optimizer.zero_grad()", "if step % 2: optimizer.zero_grad()"
    )
    assert checked("train.py", late).job["gradient_accumulation_steps"] == 2


ENGINE = """\
import deepspeed
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM
class Trains:
    def __init__(self):
        model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype="bfloat16")
        config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW"}}
        self.engine, _, _, _ = deepspeed.initialize(model=model, config=config)
        self.loader = DataLoader(rows, batch_size=2, collate_fn=lambda x: tokenizer(x, truncation=True, max_length=512))
    def train(self):
        for batch in self.loader:
            loss = self.engine(**batch).loss
            self.engine.backward(loss)
            self.engine.step()
Trains().train()
"""


def test_loops_around_one_forward_are_one_question() -> None:
    text = "from transformers import AutoModelForCausalLM\nfrom torch.utils.data import DataLoader\n"
    text += (
        'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")\nloader = DataLoader(rows, batch_size=2)\n'
    )
    text += "def run(batch):\n    return model(**batch).logits.exp().mean()\n"
    text += "for batch in loader:\n    run(batch).backward()\n" * 2
    Path("train.py").write_text(text)
    found = check_all("train.py", {"gpu": "80GB"})
    assert [each.fits for each in found] == ["unclear"], found


def test_a_model_that_a_loop_shards_by_torchs_fsdp_is_counted_whole() -> None:
    begin = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    text = begin + LOOP.format(**PLAIN).replace(
        "model, optimizer, loader =", "model = FSDP(model)\n    _, optimizer, loader ="
    )
    found = checked("train.py", text.replace("prepare(model,", "prepare(None,"), num_gpus=2)
    assert (found.fits, len(found.unread)) == ("yes", 1), found.text
    assert "whole copies" in str(found.unread)


def test_a_loop_of_deepspeeds_engine_is_under_its_config() -> None:
    job = checked("train.py", ENGINE, num_gpus=8).job
    assert (job["sharding"], job["batch_size"], job["sequence_length"]) == ("zero2", 2, 512)


def test_of_deepspeeds_config_only_what_decides_must_be_known() -> None:
    own = '{"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW"}}'
    more = own.replace('"AdamW"}}', '"AdamW", "params": {"lr": rate()}}, "train_batch_size": 2 * world()}')
    found = checked("train.py", ENGINE.replace(own, more), num_gpus=8)
    assert (found.fits, found.job["sharding"], found.job["precision"]) == ("yes", "zero2", "bf16-master")
    found = checked("train.py", ENGINE.replace(own, "made()"), num_gpus=8)
    assert found.fits == "unclear"
    assert {each["key"] for each in found.unread} >= {"sharding", "precision"}


OF_OPTIONS = """\
import argparse, deepspeed
from transformers import AutoModelForCausalLM
parser = argparse.ArgumentParser()
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype="bfloat16")
data = [tokenizer(text, truncation=True, max_length=512) for text in texts]
engine, _, loader, _ = deepspeed.initialize(args, model, training_data=data)
for batch in loader:
    loss = engine(**batch).loss
    engine.backward(loss)
    engine.step()
"""


@pytest.mark.parametrize("micro", ['"train_micro_batch_size_per_gpu": 3, ', ""])
def test_an_engine_makes_the_loader_of_the_config_that_its_options_name(micro: str) -> None:
    Path("train.py").write_text(OF_OPTIONS)
    Path("ds.json").write_text(f'{{{micro}"bf16": {{"enabled": true}}, "zero_optimization": {{"stage": 1}}}}')
    found = checked("run.sh", "deepspeed --num_gpus 8 train.py --deepspeed --deepspeed_config ds.json\n")
    assert (found.job["batch_size"] == 3, found.fits) == ((True, "yes") if micro else (False, "unclear"))
    assert found.job["sharding"] == "zero1"


OWN = """\
import argparse
from transformers import Trainer, TrainingArguments
parser = argparse.ArgumentParser()
parser.add_argument("--image_dir")
given = parser.parse_args()
args = TrainingArguments(output_dir="out", per_device_train_batch_size=1, bf16=True)
Trainer(model=mine(given), args=args).train()
"""


def test_a_model_of_the_programs_own_that_sees_is_no_language_model() -> None:
    Path("train.py").write_text(OWN)
    said = {"quantization": "none", "precision": "bf16", "sequence_length": 1024}
    asked = checked("run.sh", "torchrun --nproc_per_node 1 train.py --image_dir a\n", **said)
    assert "--model llava-hf/llava-1.5-7b-hf" in asked.hint
    assert "images.per_example" in asked.hint
    blind = checked("run.sh", "torchrun --nproc_per_node 1 train.py --image_dir a\n", model="smollm2-135m", **said)
    assert "what it has for images is not counted" in str(blind.unread)


ROUNDS = """\
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM
def epoch(model, loader, optimizer):
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
def loaded():
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype=torch.bfloat16)
    return model.to("cuda")
def main():
    rows = [tokenizer(text, truncation=True, max_length=512) for text in texts]
    loader = DataLoader(rows, batch_size=4)
    first = loaded()
    {between}
    epoch(first, loader, torch.optim.AdamW(first.parameters()))
    {after}
main()
"""
LOADED = "AutoModelForCausalLM.from_pretrained('openai-community/gpt2').to('cuda')"


@pytest.mark.parametrize(
    ("between", "after", "beside", "fits"),
    [
        ("pass", "pass", [], "yes"),
        (f"judge = {LOADED}", "pass", [("openai-community/gpt2", "fp32")], "yes"),
        ("pass", f"second = {LOADED}\n    epoch(second, loader, torch.optim.AdamW(second.parameters()))",
         [("Qwen/Qwen2.5-0.5B", "bf16")], "unclear"),
    ],
)  # fmt: skip
def test_models_of_the_function_that_calls_the_loop_are_on_the_card(
    between: str, after: str, beside: list[tuple[str, str]], fits: str
) -> None:
    found = checked("train.py", ROUNDS.format(between=between, after=after))
    assert [(each["model"], each["precision"]) for each in found.job.get("extra_models", ())] == beside
    assert found.fits == fits
    assert ("several models" in str(found.warnings)) is (fits == "unclear")


SCORED = """\
import torch
from torch.utils.data import DataLoader
from transformers import AutoModel
class Scorer(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.model = AutoModel.from_pretrained(name, torch_dtype=torch.bfloat16)
        self.score = torch.nn.Linear(896, 1)
    def forward(self, ids):
        return self.score(self.model(ids).last_hidden_state[:, -1])
def train(batch_size=8):
    rows = [tokenizer(text, truncation=True, max_length=256) for text in texts]
    model = Scorer("Qwen/Qwen2.5-0.5B").to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for chosen, rejected in DataLoader(rows, batch_size=batch_size):
        loss = -torch.nn.functional.logsigmoid(model(chosen) - model(rejected)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
def ablation():
    for size in (16, 64):
        train(size)
train()
"""


def test_a_loss_that_is_not_read_is_asked_for_by_name_and_what_nothing_calls_changes_nothing() -> None:
    found = checked("train.py", SCORED)
    assert (found.fits, found.hint) == ("unclear", "add --set own_loss.logits=16 --set own_loss.forwards=2")
    given = checked("train.py", SCORED, own_loss={"logits": 16, "forwards": 2})
    assert (given.fits, given.job["batch_size"], given.job["sequence_length"]) == ("yes", 16, 256)
    whole = SCORED.replace("return self.score(self.model(ids).last_hidden_state[:, -1])", "return self.model(ids).loss")
    assert checked("train.py", whole.replace("train(batch_size=8)", "train(batch_size=4)")).hint == found.hint


LIGHTNING = """\
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM
class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype=torch.float32)
    def forward(self, **batch):
        return self.model(**batch)
    def shared_step(self, batch):
        {step}
    def training_step(self, batch, at):
        return self.shared_step(batch)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-5)
rows = [tokenizer(text, truncation=True, max_length=512) for text in texts]
trainer = pl.Trainer({arguments})
trainer.fit(Module(), DataLoader(rows, batch_size=4))
"""


@pytest.mark.parametrize(
    ("step", "arguments", "expected"),
    [
        ("return self(**batch).loss", "", ("yes", "fp32", False, 1, None)),
        ("return self(**batch).loss", "precision='bf16-mixed', accumulate_grad_batches=4",
         ("yes", "bf16-amp", True, 4, None)),
        ("return {'loss': self.model(**batch)[0]}", "precision='16-true'", ("yes", "fp16", False, 1, None)),
        ("return self(**batch).loss", "strategy='deepspeed_stage_2'", ("yes", "fp32", False, 1, "zero2")),
        ("return criterion(self(**batch).logits)", "", ("unclear", "fp32", False, 1, None)),
    ],
)  # fmt: skip
def test_lightning_runs_a_step_of_a_module(step: str, arguments: str, expected: tuple[object, ...]) -> None:
    found = checked("train.py", LIGHTNING.format(step=step, arguments=arguments))
    keys = ("precision", "autocast", "gradient_accumulation_steps")
    sharding = found.job["sharding"] if found.job.get("sharding") != "none" else None
    assert (found.fits, *(found.job.get(key) or False for key in keys), sharding) == expected
    assert (found.job["batch_size"], found.job["sequence_length"]) == (4, 512)
    assert "own_loss" in found.hint or found.fits == "yes"


def test_a_trainer_of_pairs_of_ones_own_is_asked_what_its_loss_holds() -> None:
    found = checked("train.py", OWN_PAIRS, sequence_length=256)
    assert (found.fits, found.hint) == ("unclear", "add --set own_loss.logits=16")
    told = {"sequence_length": 256, "own_loss": {"logits": 16}}
    given = checked("train.py", OWN_PAIRS, **told)
    assert (given.fits, given.job["batch_size"]) == ("yes", 4)
    assert checked("train.py", OWN_PAIRS, **told, batch_size=3).job["batch_size"] == 6
    assert [(each["role"], each["model"]) for each in given.job["extra_models"]] == [("teacher", "Qwen/Qwen2.5-1.5B")]
    one = "import sys\n" + re.sub('"Qwen/.*?"', "sys.argv[1]", OWN_PAIRS)  # two names of one option are one model
    given = checked("train.py", one, **told, model="Qwen/Qwen2.5-0.5B")
    assert (given.fits, [each["model"] for each in given.job["extra_models"]]) == ("yes", ["Qwen/Qwen2.5-0.5B"])


OWN_PAIRS = """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
class OwnDPOTrainer(Trainer):
    def __init__(self, *args, ref_model=None, beta=0.1, **more):
        super().__init__(*args, **more)
        self.ref_model, self.beta = ref_model, beta
    def compute_loss(self, model, inputs, **kwargs):
        return drawn(model(**inputs).logits, self.ref_model(**inputs).logits)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype="bfloat16")
other = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B", dtype="bfloat16").to("cuda")
OwnDPOTrainer(model=model, ref_model=other, beta=0.2, args=TrainingArguments(per_device_train_batch_size=2)).train()
"""


def test_a_loop_that_nothing_in_its_file_calls_is_no_training_of_its_own() -> None:
    loop = "def fit(model, rows):\n    for row in rows:\n        model(row, labels=row).loss.backward()\n"
    assert checked("train.py", f"import torch\n{loop}").fits == "skipped"
    assert checked("train.py", f"import torch\n{loop}if __name__ == '__main__':\n    fit(*drawn())\n").fits == "unclear"


def test_an_option_that_is_needed_ends_no_program() -> None:
    loop = """\
import argparse, sys, torch
from transformers import AutoModelForCausalLM
parser = argparse.ArgumentParser()
parser.add_argument("--rows", default=None)
A = parser.parse_args()
if not A.rows:
    print("--rows is required")
    sys.exit(2)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype=torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters())
for row in load(A.rows):
    model(**row).loss.backward()
    optimizer.step()
"""
    found = checked("train.py", loop, sequence_length=256, batch_size=1)
    assert (found.fits, found.job["model"]) == ("yes", "Qwen/Qwen2.5-0.5B")

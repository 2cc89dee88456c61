"""Proves what is counted of losses of a program's own, and that what is not known of one leaves it unclear."""

from pathlib import Path

import pytest
from framework_cases import checked
from own_loss_cases import HEAD, LOSSES, TAIL, source

import memplan
from memplan.errors import InvalidJob
from memplan.frameworks.checks.checking import Checked

PLAIN = "Own(model=model, args=TrainingArguments(per_device_train_batch_size=2)).train()\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def walked(program: str) -> Checked:
    """The answer of a program with the cases' imports."""
    return checked("train.py", HEAD + program, sequence_length=512)


@pytest.mark.parametrize(
    ("name", "logits", "sequences", "forwards"),
    [
        ("weighted", 12, 1, 1),  # the shifted copy, its log-softmax, a gradient
        ("distilled", 28, 1, 1),
        ("Jensen-Shannon", 44, 1, 1),
        ("pairs, a forward each", 9, 2, 2),
        ("pairs, one forward", 12, 2, 1),
    ],
)
def test_a_loss_is_counted_from_above(name: str, logits: int, sequences: int, forwards: int) -> None:
    found = walked(source(name) + TAIL)
    assert (found.fits, found.at_most) == ("yes", True), found.text
    own = found.job["own_loss"]
    assert (own["logits"], own["forwards"], found.job["batch_size"]) == (logits, forwards, 2 * sequences)
    asked = "self.teacher" in LOSSES[name]
    others = [(each["role"], each["model"]) for each in found.job.get("extra_models", ())]
    assert others == [("teacher" if asked else "reward", "Qwen/Qwen2.5-1.5B")]


BEGIN = "class Own(Trainer):\n    def compute_loss(self, model, inputs, return_outputs=False):\n        "
END = '\nmodel = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")\n' + PLAIN


def test_what_a_trainers_compute_loss_is_copied_from_is_followed() -> None:
    """transformers' own: labels that were there are none no more, and a memory is handed on by few models."""
    body = """labels = inputs.pop("labels") if self.label_smoother is not None else None
        outputs = model(**inputs)
        if self.args.past_index >= 0:
            self._past = outputs[self.args.past_index]
        if labels is not None:
            return self.label_smoother(outputs, labels)
        return outputs["loss"] if isinstance(outputs, dict) else outputs[0]"""
    found = walked(BEGIN + body + END)
    assert (found.fits, found.at_most) == ("yes", True), found.text


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("return helper(model(**inputs).logits)", "helper"),
        ("return model(**inputs).logits.svd()[0].sum()", "svd"),
        ("return model(**inputs).loss + sum(p.abs().sum() for p in model.parameters())", "all parameters of a model"),
        ("return model(**inputs).loss + self.other(**inputs).loss", "other"),
        ("x = model.generate(**inputs); return model(**inputs).loss", "generate of a model"),
        ("x = model(**inputs).logits; return (x @ x.transpose(1, 2)).sum()", "a product of large matrices"),
        ("x = model(**inputs).logits; self.kept = x; return x.mean()", "self.kept, which keeps a large tensor"),
        ("return model(inputs['input_ids'].view(-1, 64)).logits.mean()", "more rows than are known"),
        ("ids = torch.cat([inputs['a'], inputs['b']], dim=1); return model(ids).logits.mean()", "more rows"),
        ("x = model(**inputs).logits; return sum(x[i].exp().mean() for i in range(len(x)))", "a loop over large"),
        ("x = model(**inputs).logits; return (x * inputs['teacher_logits']).mean()", "teacher_logits of the batch"),
        ("margin = 1; return model(**inputs).logits.mean() + margin", "margin, so an example may have more rows"),
        ("x = model(**inputs).hidden_states[-1]; return x.mean()", "without output_hidden_states"),
        ("return model(**inputs).logits.repeat_interleave(2, 0).mean()", "repeat_interleave of a large tensor"),
        ("return torch.zeros(4, 512, 151936).mean() + model(**inputs).logits.mean()", "zeros of a size"),
    ],
)
def test_what_is_not_known_of_a_loss_is_named(body: str, named: str) -> None:
    found = walked(BEGIN + body + END)
    assert found.fits == "unclear", found.text
    assert named in found.text


def test_a_teacher_that_is_run_with_gradients_is_unclear() -> None:
    text = source("mean square").replace("with torch.no_grad():", "if True:") + TAIL
    assert "a second model that is run with gradients" in walked(text).text


def test_both_ways_of_a_condition_are_walked() -> None:
    body = "x = model(**inputs).logits\n        if self.state.epoch > 1:\n            return x.mean()\n        {}" + END
    small, large = (
        walked(BEGIN + body.format(each)) for each in ("return x.sum()", "return (x.exp() * x.log()).sum()")
    )
    assert small.job["own_loss"]["logits"] < large.job["own_loss"]["logits"]


def test_heads_for_classes_have_few_logits() -> None:
    text = BEGIN + "labels = inputs.pop('labels'); x = model(**inputs).logits\n        "
    text += "return nn.CrossEntropyLoss(weight=self.weights)(x.view(-1, 3), labels)"
    text += END.replace("CausalLM", "SequenceClassification").replace('0.5B"', '0.5B", num_labels=3')
    found = walked(text.replace("import AutoModelForCausalLM", "import AutoModelForSequenceClassification"))
    assert (found.fits, found.job["method"], found.job.get("own_loss")) == ("yes", "reward", None), found.text


def test_a_method_in_the_middle_of_a_trainers_name_is_seen() -> None:
    program = (BEGIN + "return strange(model(**inputs).logits)" + END).replace("Own", "Qwen2VLGRPOTrainer")
    found = walked(program)
    assert found.fits == "unclear"
    assert "trains by grpo with code of its own" in found.text
    found = checked("train_dpo.py", HEAD + program.replace("Qwen2VLGRPOTrainer", "Mine"), sequence_length=512)
    assert "Mine trains by dpo with code of its own" in found.text


COPY = """
from transformers import GenerationConfig
from trl import GRPOConfig
class CopiedTrainer(Trainer):
    def __init__(self, model, reward_funcs=None, args=None, peft_config=None, **more):
        self.num_generations, self.beta = args.num_generations, args.beta
        self.generation = GenerationConfig(num_return_sequences=self.num_generations)
        self.ref_model = AutoModelForCausalLM.from_pretrained(model)
        super().__init__(model=model, args=args, **more)
    def _get_per_token_logps(self, model, input_ids, mask):
        logits_batch = model(input_ids=input_ids, attention_mask=mask).logits[:, :-1]
        found = []
        for row, ids in zip(logits_batch, input_ids[:, 1:]):
            logits_row = row
            log_probs = logits_row.log_softmax(dim=-1)
            found.append(torch.gather(log_probs, 1, ids.unsqueeze(1)).squeeze(1))
        return torch.stack(found)
    def compute_loss(self, model, inputs, return_outputs=False):
        with unwrap_model_for_generation(model, self.accelerator) as unwrapped:
            ids = unwrapped.generate(inputs["prompt_ids"], generation_config=self.generation)
        logps = self._get_per_token_logps(model, ids, None)
        with torch.inference_mode():
            ref = self._get_per_token_logps(self.ref_model, ids, None)
        return (torch.exp(ref - logps) * self.beta).mean()
args = GRPOConfig("out", num_generations=4, max_completion_length=200, model_init_kwargs={"dtype": "bfloat16"})
CopiedTrainer("Qwen/Qwen2.5-0.5B", args=args).train()
"""


def test_a_copy_of_trls_grpo_trainer_is_counted_by_its_code() -> None:
    """Of TRL's first version: all answers to a prompt at once, and the log-softmax of every token's logits."""
    found = checked("train.py", HEAD + COPY.replace("_length=200", "_length=200, per_device_train_batch_size=1"))
    assert (found.fits, found.job["batch_size"], found.job["sequence_length"]) == ("yes", 4, 712), found.text
    assert (found.job["completion_length"], found.job["loss_head"], found.job["reference"]) == (
        712,
        "log-softmax",
        "resident",
    )
    kept = COPY.replace("num_return_sequences=self.num_generations", "").replace(", mask):", ", mask, logits_to_keep):")
    found = checked("train.py", HEAD + kept)
    assert (found.job["batch_size"], found.job["completion_length"]) == (32, 200)  # nothing else repeats its prompts
    sampler = "\n    def _get_train_sampler(self):\n        return RepeatSampler(self.num_generations)\nargs ="
    assert checked("train.py", HEAD + kept.replace("\nargs =", sampler)).job["batch_size"] == 8


def test_trls_first_grpo_trains_all_answers_to_a_prompt_at_once() -> None:
    """0.14, whether a program or a file of arguments is read beside the pin."""
    Path("requirements.txt").write_text("trl==0.14.0\n")
    text = "model_name_or_path: Qwen/Qwen2.5-0.5B\nnum_generations: 4\nmax_completion_length: 64\nbf16: true\n"
    program = COPY.replace('CopiedTrainer("', 'GRPOTrainer("').replace(
        "import GRPOConfig", "import GRPOConfig, GRPOTrainer"
    )
    for name, written in (("grpo.yaml", f"{text}per_device_train_batch_size: 2\n"), ("train.py", HEAD + program)):
        found = checked(name, written)
        assert found.fits == "yes", found.text
        assert (found.job["batch_size"], found.job["loss_head"]) == (8 if name == "grpo.yaml" else 32, "log-softmax")


@pytest.mark.parametrize(
    ("there", "instead", "named"),
    [
        ("zip(logits_batch", "zip(logits_batch.softmax(-1)", "CopiedTrainer makes more of the logits"),
        (
            "return (torch",
            "again = self._get_per_token_logps(model, ids, None)\n        return (torch",
            "runs the model",
        ),
        ("return (torch", "again = model(ids)\n        return (torch", "runs the model more often"),
        (
            "self.ref_model = ",
            "self.judge = AutoModelForCausalLM.from_pretrained('x')\n        self.ref_model = ",
            "own",
        ),
    ],
)
def test_what_a_copy_does_beyond_is_named(there: str, instead: str, named: str) -> None:
    found = checked("train.py", HEAD + COPY.replace(there, instead))
    assert found.fits == "unclear"
    assert any(named in each for each in found.warnings), found.warnings


JOB = {"model": "qwen2.5-0.5b", "method": "sft", "trainer": "transformers", "precision": "bf16", "batch_size": 2,
       "sequence_length": 512}  # fmt: skip


def test_the_key_is_counted_where_it_is_said() -> None:
    """For each logit what it says, and of further forwards gradients that wait."""

    def bytes_of(**own: int) -> int:
        return memplan.estimate({**JOB, "own_loss": own}).per_gpu.allocated_bytes

    logits = 2 * 512 * 151936
    assert bytes_of(logits=40) - bytes_of(logits=30) == 10 * logits
    teacher = {"extra_models": [{"role": "teacher", "model": "gemma-3-1b"}]}  # of 262,144 words
    wide = [memplan.estimate({**JOB, **teacher, "own_loss": {"logits": size}}).per_gpu for size in (40, 30)]
    assert wide[0].allocated_bytes - wide[1].allocated_bytes > 10 * 2 * 512 * 262_000
    assert bytes_of(logits=40, forwards=2) - bytes_of(logits=40) >= 2 * 490_000_000
    with pytest.raises(InvalidJob, match="own_loss: with method dpo"):
        memplan.estimate({**JOB, "trainer": "trl", "method": "dpo", "own_loss": {"logits": 20}})

"""Proves that what a program changes behind its settings is said: parts and configs of the model, methods in a
library's place, weights beside the adapters, callbacks, hooks, second models; and what changes nothing passed over."""

from pathlib import Path

import pytest
from framework_cases import checked

PROGRAM = """\
import torch, transformers
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments
from patches import Manager, patch_model, print_trainable_parameters
from trl import DPOConfig, DPOTrainer
{before}
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype=torch.bfloat16)
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj"]))
{lines}
args = TrainingArguments(per_device_train_batch_size=2, bf16=True, eval_strategy="{evaluates}")
trainer = {trainer}(model=model, args=args{more})
trainer.train()
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def fits(
    lines: str, before: str = "", trainer: str = "Trainer", more: str = "", evaluates: str = "no"
) -> tuple[str, str]:
    text = PROGRAM.format(lines=lines, before=before, trainer=trainer, more=more, evaluates=evaluates)
    found = checked("a.py", text, sequence_length=256, num_gpus=1)
    return found.fits, f"{found.text} {found.hint}"


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("model.config.use_cache = False", ""),
        ("model.lm_head = torch.nn.Identity()", "lm_head"),
        ("model.model.layers = model.model.layers[:4]", "model.layers"),
        ("model.config.output_hidden_states = True", "config.output_hidden_states"),
        ("model.config.output_hidden_states = False", ""),
        ("transformers.Trainer.compute_loss = lambda *a: 0", "Trainer.compute_loss"),
        ("transformers.Trainer.save_model = lambda *a: 0", ""),
        ("patch_model(model)", "patch_model"),
        ("manager = Manager(model=model)", "Manager"),
        ("nobody_defines(model)", "nobody_defines"),
        ("print(type(model), id(model))", ""),
        ("print_trainable_parameters(model)", ""),
        ("model.quantize(4)", "quantize"),
        ("model.print_trainable_parameters()", ""),
        ("for n, p in model.named_parameters():\n    p.requires_grad = True", "requires_grad"),
        ("for n, p in model.named_parameters():\n    if 'lora' in n:\n        p.requires_grad = True", ""),
        ("for n, p in model.named_parameters():\n    p.requires_grad = 'lora' in n", "requires_grad"),
        ("model.lm_head.requires_grad_(True)", "requires_grad"),
        ("for p in model.parameters():\n    p.data = p.data.to(torch.float32)", "data"),
        ("for n, m in model.named_modules():\n    if 'norm' in n:\n        m.to(torch.float32)", "float32"),
        ("for m in model.modules():\n    m.to(torch.bfloat16)", ""),
        ("for m in model.modules():\n    m.forward = lambda x: x", "each.forward"),
        ("for n, m in model.named_modules():\n    m.called = n", ""),
        ("from mine import get_teacher\nteacher = get_teacher(model)", "get_teacher"),
        ("from mine import get_model_size\nget_model_size(model)", ""),
        ("from mine import set_trainable_params\nset_trainable_params(model)", "set_trainable_params"),
        ("from mine import MemoryModel\nMemoryModel(model)", "MemoryModel"),
        ("from mine import EvalCallback\ncallback = EvalCallback(model)", "EvalCallback"),
        ("from mine import TextDataset, evaluate_model\nTextDataset(model)\nevaluate_model(model)", ""),
        ("torch.backends.cuda.enable_flash_sdp(False)", "--attention eager"),
        ("torch.backends.cuda.enable_flash_sdp(True)", ""),
        ("model.lm_head.register_forward_hook(lambda *a: 0)", "register_forward_hook"),
        ("def make_inputs_require_grad(m, i, o):\n    o.requires_grad_(True)\n"
         "model.get_input_embeddings().register_forward_hook(make_inputs_require_grad)", ""),
    ],
)  # fmt: skip
def test_a_change_of_the_model_is_said(lines: str, named: str) -> None:
    found, text = fits(lines)
    assert found == ("unclear" if named else "yes"), text
    assert named in text


OPTIMIZER = "    def create_optimizer(self):\n        self.optimizer = {}\n"
STEP = "    def prediction_step(self, model, inputs, *rest):\n        return {}\n"
LOSS = """\
    def compute_loss(self, model, inputs, **more):
        outputs = model(**inputs)
        {}
        return outputs.loss
"""


@pytest.mark.parametrize(
    ("methods", "evaluates", "named"),
    [
        (OPTIMIZER.format("Sophia(self.model)"), "no", "create_optimizer"),
        (OPTIMIZER.format("Trainer.get_optimizer_cls_and_kwargs(self.args)[0](groups)"), "no", ""),
        (STEP.format("model(**inputs).loss, model(**inputs).logits, None"), "no", ""),
        (STEP.format("model(**inputs).loss, model(**inputs).logits, None"), "steps", "prediction_step"),
        (STEP.format("model(**inputs).loss, None, None"), "steps", ""),
        ("    def __init__(self, *a, **k):\n        self.loss_type = k.pop('kind')\n", "no", ""),
        (LOSS.format("self.seen += 1"), "no", ""),
        (LOSS.format("self.draw(model)"), "no", "compute_loss"),
        (LOSS.format("assert isinstance(model, type(self.model))"), "no", ""),
    ],
)
def test_a_method_of_a_subclass_is_said(methods: str, evaluates: str, named: str) -> None:
    found, text = fits("", f"class Mine(Trainer):\n{methods}", "Mine", ", kind=1", evaluates)
    assert found == ("unclear" if named else "yes"), text
    assert named in text


@pytest.mark.parametrize(("does", "named"), [("model.generate(**i)", "Samples"), ("print(state)", "")])
@pytest.mark.parametrize("how", [", callbacks=[Samples()]", ")\ntrainer.add_callback(Samples()"])
def test_a_callback_that_runs_the_model_is_said(does: str, named: str, how: str) -> None:
    own = f"class Samples(TrainerCallback):\n    def on_log(self, args, state, model=None, **k):\n        {does}\n"
    found, text = fits("", own, more=how)
    assert found == ("unclear" if named else "yes"), text
    assert named in text


def test_an_optimizer_that_is_handed_over_is_the_one_that_steps() -> None:
    text = PROGRAM.format(lines="", before="import bitsandbytes as bnb", trainer="Trainer", evaluates="no",
                          more=", optimizers=(bnb.optim.AdamW8bit(model.parameters()), None)")  # fmt: skip
    assert checked("a.py", text, sequence_length=256).job["optimizer"] == "adamw-8bit"
    other = text.replace("bnb.optim.AdamW8bit", "torch.optim.ASGD")
    assert checked("b.py", other, sequence_length=256, num_gpus=1).fits == "unclear"


@pytest.mark.parametrize(("dtype", "found"), [("bfloat16", "yes"), ("float32", "unclear")])
def test_a_reference_that_is_loaded_otherwise_is_said(dtype: str, found: str) -> None:
    text = PROGRAM.replace("model = get", "other = get").replace("TrainingArguments(", "DPOConfig(max_length=256, ")
    text = text.format(lines=f"ref = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B', dtype=torch.{dtype})",
                       before="", trainer="DPOTrainer", more=", ref_model=ref", evaluates="no")  # fmt: skip
    assert checked("a.py", text, num_gpus=1).fits == found


def test_a_model_that_a_subclass_keeps_is_a_second_one() -> None:
    own = "class Mine(Trainer):\n    def __init__(self, *a, teacher=None, **k):\n        self.teacher = teacher\n"
    teacher = "t = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-1.5B', dtype=torch.bfloat16)"
    text = PROGRAM.format(lines=teacher, before=own, trainer="Mine", more=", teacher=t", evaluates="no")
    job = checked("a.py", text, sequence_length=256, num_gpus=1).job
    assert [each["model"] for each in job["extra_models"]] == ["Qwen/Qwen2.5-1.5B"]


def test_a_length_that_cuts_nothing_is_asked_for() -> None:
    text = PROGRAM.replace("TrainingArguments(", "DPOConfig(max_length=1000000, ").replace(
        "Trainer(model", "DPOTrainer(model"
    )
    text = text.format(lines="", before="", trainer="DPOTrainer", more="", evaluates="no")
    found = checked("a.py", text, num_gpus=1)
    assert found.fits == "unclear"
    assert "cuts nothing" in found.text


def test_modules_that_are_cast_beside_quantised_ones_are_counted_so() -> None:
    text = PROGRAM.replace("dtype=torch.bfloat16", "load_in_8bit=True", 1)
    cast = "for n, m in model.named_modules():\n    if 'norm' in n:\n        m.to(torch.float32)"
    jobs = [checked("a.py", text.format(lines=lines, before="", trainer="Trainer", more="", evaluates="no"),
                    sequence_length=256, num_gpus=1).job for lines in ("", cast)]  # fmt: skip
    assert [each["kbit_upcast"] for each in jobs] == [False, True]


def test_arguments_that_are_set_by_a_method_are_not_known() -> None:
    text = PROGRAM.replace("trainer = ", "args.set_training(batch_size=64)\ntrainer = ").format(
        lines="", before="", trainer="Trainer", more="", evaluates="no"
    )
    assert "batch_size is not known" in checked("a.py", text, sequence_length=256, num_gpus=1).text


@pytest.mark.parametrize(("mixed", "found"), [("True", "yes"), ("False", "unclear")])
def test_an_autocast_around_a_training_is_said(mixed: str, found: str) -> None:
    text = PROGRAM.replace("trainer.train()", "with torch.autocast('cuda'):\n    trainer.train()")
    text = text.replace("bf16=True", f"bf16={mixed}")
    text = text.format(lines="", before="", trainer="Trainer", more="", evaluates="no")
    assert checked("a.py", text, sequence_length=256, num_gpus=1).fits == found


@pytest.mark.parametrize(("falls", "counted"), [("eager", "eager"), ("sdpa", "sdpa"), ("kernels/x", None)])
def test_of_two_attentions_the_one_that_takes_more_is_counted(falls: str, counted: str | None) -> None:
    tries = f"try:\n    import flash_attn\n    a = 'flash_attention_2'\nexcept ImportError:\n    a = '{falls}'"
    text = PROGRAM.replace("dtype=torch.bfloat16", "dtype=torch.bfloat16, attn_implementation=a", 1)
    text = text.format(lines="", before=tries, trainer="Trainer", more="", evaluates="no")
    found = checked("a.py", text, sequence_length=256, num_gpus=1)
    assert (found.job["attention"] if counted else None) == counted
    assert found.fits == ("yes" if counted else "unclear")
    assert (f"{falls} what needs the most is counted" in " ".join(found.warnings)) == bool(counted)


@pytest.mark.parametrize(
    ("kind", "evaluates", "named"),
    [("Seq2Seq", "steps", "--without predict_with_generate"), ("Seq2Seq", "no", ""), ("", "steps", "")],
)
def test_what_evaluation_generates_is_said(kind: str, evaluates: str, named: str) -> None:
    text = PROGRAM.replace("Trainer, T", "Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, T").replace(
        "TrainingArguments(per", "Seq2SeqTrainingArguments(predict_with_generate=True, per"
    )
    text = text.format(lines="", before="", trainer=f"{kind}Trainer", more="", evaluates=evaluates)
    found = checked("a.py", text, sequence_length=256, num_gpus=1)
    assert (found.fits, named in found.hint) == ("unclear" if named else "yes", True)


@pytest.mark.parametrize(
    ("name", "known"), [("kind + '_dir'", True), ("f'{kind}_dir'", True), ("kind", False), ("kind + '_size'", False)]
)
def test_a_setting_whose_name_ends_otherwise_is_kept(name: str, known: bool) -> None:
    """``setattr(args, kind + "_dir", ...)`` of a name that only a run knows."""
    before = f"for kind in Manager.kinds():\n    setattr(o, {name}, 1)\n"
    own = "class Options:\n    batch_size: int = 2\no = Options()\n"
    text = PROGRAM.replace("size=2", "size=o.batch_size").format(
        lines="", before=own + before, trainer="Trainer", more="", evaluates="no"
    )
    assert (checked("a.py", text, sequence_length=256, num_gpus=1).fits == "yes") == known


def test_adapters_of_unsloths_phi_are_on_products_that_are_apart() -> None:
    """Its copies of Phi-4 are Llama's: an adapter each, where transformers' class has fused products."""
    text = """\
from unsloth import FastLanguageModel
from trl import SFTConfig, SFTTrainer
model, t = FastLanguageModel.from_pretrained("microsoft/phi-4", max_seq_length=256, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj"])
SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=1)).train()
"""
    lora = checked("a.py", text, num_gpus=1).job["lora"]
    assert set(lora["targets"]) == {"o_proj", "qkv_proj", "gate_up_proj"}
    assert lora["rank_pattern"] == {"qkv_proj": 24, "gate_up_proj": 8}


@pytest.mark.parametrize(
    ("before", "named"),
    [("", ""), ("for p in model.parameters():\n    p.requires_grad = False\n", "requires_grad")],
)
def test_weights_that_are_trained_anyway_are_told_so_for_nothing(before: str, named: str) -> None:
    text = f"""\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype="bfloat16")
{before}for n, p in model.named_parameters():
    if "lora" in n:
        p.requires_grad = True
Trainer(model=model, args=TrainingArguments(per_device_train_batch_size=64), train_dataset=rows).train()
"""
    found = checked("a.py", text, sequence_length=2048, num_gpus=1)
    assert (found.fits, named in found.text) == ("unclear" if named else "no", True)


def test_a_folder_whose_adapters_a_loop_names_has_them() -> None:
    """from_pretrained loads adapters with their base; what they train whole is said not to be counted."""
    loop = "for n, p in model.named_parameters():\n    if 'lora' in n.lower():\n        p.requires_grad = True\n"
    text = PROGRAM.replace("Qwen/Qwen2.5-0.5B", "stage1/final").format(
        lines=loop, before="", trainer="Trainer", more="", evaluates="no"
    )
    text = text.replace('model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj"]))', "")
    options = {"sequence_length": 256, "num_gpus": 1, "model": "qwen3-0.6b"}
    found = checked("a.py", text, **options)
    assert found.fits == "unclear", found.text
    assert "adapters are loaded" in found.text, found.text
    found = checked("a.py", text, **options, lora={"r": 8, "targets": "all-linear"})
    assert found.fits == "yes", found.text
    assert any("modules_to_save" in each for each in found.warnings), found


def test_fastchats_flash_attention_in_a_llamas_place_is_counted() -> None:
    patch = (
        "from fastchat.train.patches import replace_llama_attn_with_flash_attn\nreplace_llama_attn_with_flash_attn()"
    )
    text = PROGRAM.format(lines="", before=patch, trainer="Trainer", more="", evaluates="no")
    for model, attention in (("huggyllama/llama-7b", "flash"), ("Qwen/Qwen2.5-0.5B", "sdpa")):
        found = checked("a.py", text.replace("Qwen/Qwen2.5-0.5B", model), sequence_length=256, num_gpus=1)
        assert found.job["attention"] == attention, found.text


@pytest.mark.parametrize(("driven", "said"), [("trainer.step(rows)", True), ("trainer.evaluate()", False)])
def test_a_trainer_whose_steps_the_program_takes_is_no_training_of_its(driven: str, said: bool) -> None:
    text = PROGRAM.format(lines="", before="", trainer="Trainer", more="", evaluates="no")
    found = checked("a.py", text.replace("trainer.train()", f"trainer.train()\n{driven}"), sequence_length=256)
    assert ("takes the trainer's steps itself" in found.text) == said


def test_a_model_that_a_value_head_is_put_around_is_the_one_that_was_made() -> None:
    lines = "from trl import AutoModelForCausalLMWithValueHead as Valued\nmodel = Valued.from_pretrained(model)"
    text = PROGRAM.format(lines=lines, before="", trainer="Trainer", more="", evaluates="no")
    found = checked("a.py", text, sequence_length=256, num_gpus=1)
    assert found.fits == "unclear", found.text
    assert "AutoModelForCausalLMWithValueHead (loss)" in found.text, found.text
    assert found.job["model"] == "Qwen/Qwen2.5-0.5B"
    assert found.job["lora"]["r"] == 8


PARSED = """\
\"\"\"
accelerate launch train.py --model_name_or_path Qwen/Qwen2.5-0.5B --max_seq_length 256 --bf16 --output_dir x
\"\"\"
from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, TrlParser
script, args, model = TrlParser((ScriptArguments, SFTConfig, ModelConfig)).parse_args_and_config()
rows = data["test"] if args.eval_strategy != "no" else None
trainer = SFTTrainer(model=model.model_name_or_path, args=args, train_dataset=data["train"], eval_dataset=rows)
trainer.train()
if args.do_eval:
    trainer.evaluate()
"""


@pytest.mark.parametrize(("more", "evaluates"), [("", False), (" --do_eval", True), (" --eval_strategy steps", True)])
def test_arguments_evaluate_when_their_command_says(more: str, evaluates: bool) -> None:
    shown = PARSED.replace("--output_dir x", f"--per_device_eval_batch_size 64 --output_dir x{more}")
    found = checked("train.py", shown, num_gpus=1)
    assert found.fits == "yes", found.text
    assert (found.job.get("eval_batch_size") == 64) is evaluates


@pytest.mark.parametrize(("more", "said"), [(", eval_dataset=rows", True), ("", False)])
def test_arguments_from_elsewhere_may_evaluate(more: str, said: bool) -> None:
    text = PROGRAM.format(
        lines="args = instantiate(config.args)", before="", trainer="Trainer", more=more, evaluates=""
    )
    lines = [each for each in text.splitlines() if not each.startswith("args = TrainingArguments")]
    found = checked(
        "a.py", "\n".join(lines), sequence_length=256, batch_size=1, gradient_checkpointing="full", precision="bf16",
        optimizer="adamw",
    )  # fmt: skip
    assert any("no evaluation is counted" in each for each in found.warnings) is said, found.text

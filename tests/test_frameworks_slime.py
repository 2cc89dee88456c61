"""Proves what is read of slime's scripts: Megatron's arguments, those of rollouts, and a model that is sourced."""

from functools import partial
from pathlib import Path

import pytest
from framework_cases import changed, decided, read_text

from memplan.errors import InvalidJob
from memplan.frameworks.checks.checking import check_file
from memplan.frameworks.reading import framework_of
from memplan.resolve import resolve

MODEL = """MODEL_ARGS=(
   --swiglu --num-layers 4 --hidden-size 1024 --ffn-hidden-size 2816 --num-attention-heads 16
   --group-query-attention --num-query-groups 8 --normalization RMSNorm --vocab-size 32000
)
"""
SCRIPT = """#!/bin/bash
source "${SCRIPT_DIR}/models/tiny.sh"
CKPT_ARGS=(
   --hf-checkpoint ~/models/Qwen3-4B
   --ref-load ~/models/Qwen3-4B_torch_dist
)
ROLLOUT_ARGS=(
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --rollout-max-response-len 8192
   --global-batch-size 256
)
PERF_ARGS=(
   --tensor-model-parallel-size 2
   --sequence-parallel
   --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
   --use-dynamic-batch-size
   --max-tokens-per-gpu 9216
)
GRPO_ARGS=(--advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.00 --entropy-coef 0.00)
ray job submit --address="http://127.0.0.1:8265" \\
   -- python3 train.py \\
   --actor-num-nodes 1 \\
   --actor-num-gpus-per-node 8 \\
   ENGINE \\
   ${MODEL_ARGS[@]} ${CKPT_ARGS[@]} ${ROLLOUT_ARGS[@]} ${PERF_ARGS[@]} ${GRPO_ARGS[@]} ${EVAL_ARGS[@]} 2>&1 | tee log
"""
APART = SCRIPT.replace("ENGINE", "--rollout-num-gpus 8")


read = partial(read_text, name="run.sh")


def test_an_engine_of_its_own_leaves_the_trainer_whole(tmp_path: Path) -> None:
    found = read(tmp_path, APART)
    job = found.job
    assert framework_of(str(tmp_path / "run.sh")).name == "slime"
    assert (job.trainer, job.method, job.model, job.num_gpus, job.tensor_parallel) == (
        "slime",
        "grpo",
        "Qwen/Qwen3-4B",
        8,
        2,
    )
    assert (job.token_budget, job.sequence_length, job.gradient_accumulation_steps) == (9216, 8192, 64)
    assert (job.reference, job.gradient_checkpointing, job.sharding) == ("offloaded", "full", "distributed-optimizer")
    assert not decided(found)
    assert resolve(found)


def test_an_engine_beside_the_trainer_is_sglang_s(tmp_path: Path) -> None:
    words = "--colocate --rollout-num-gpus-per-engine 2 --sglang-mem-fraction-static 0.7"
    found = read(tmp_path, SCRIPT.replace("ENGINE", f"{words} --update-weight-buffer-size 1073741824"))
    rollout = found.job.rollout
    assert rollout is not None
    assert not decided(found)
    assert (rollout.engine, rollout.placement, rollout.tensor_parallel) == ("sglang", "colocate", 2)
    assert (rollout.mem_fraction_static, found.job.sync.bucket_bytes) == (0.7, 2**30)
    assert decided(read(tmp_path, SCRIPT.replace("ENGINE", f"{words} --sglang-enable-dp-attention"))) == {
        "sglang_enable_dp_attention": "engine"
    }


def test_a_model_that_is_sourced_is_the_one_that_is_counted(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny.sh").write_text(MODEL, encoding="utf-8")
    model = resolve(read(tmp_path, APART)).model
    assert (model.hidden_size, model.num_layers, model.vocab_size) == (1024, 4, 32000)


@pytest.mark.parametrize(
    ("old", "new", "key", "value"),
    [
        ("--use-kl-loss ", "", "reference", "none"),
        ("--max-tokens-per-gpu 9216", "--max-tokens-per-gpu 2048", "token_budget", 8192),
        ("--tensor-model-parallel-size 2", "--context-parallel-size 2", "token_budget", 18432),
        ("--entropy-coef 0.00", "--entropy-coef 0.01", "entropy", "loss"),
        ("--advantage-estimator grpo", "--loss-type sft_loss", "method", "sft"),
    ],
)
def test_one_argument(tmp_path: Path, old: str, new: str, key: str, value: object) -> None:
    assert old in APART
    assert getattr(read(tmp_path, APART.replace(old, new)).job, key) == value


@pytest.mark.parametrize(
    ("old", "new", "key", "decides"),
    [
        ("--actor-num-gpus-per-node 8", "--actor-num-gpus-per-node $N", "num_gpus", "processes"),
        ("--rollout-num-gpus 8", "--rollout-num-gpus 8 --train-backend fsdp", "train_backend", "parallelism"),
        ("--rollout-num-gpus 8", "--rollout-num-gpus 8 --log-probs-chunk-size 1024", "log_probs_chunk_size", "loss"),
        ("--rollout-num-gpus 8", "--rollout-num-gpus 8 --use-opd", "use_opd", "model"),
    ],
)
def test_what_decides_and_is_not_known_is_named(tmp_path: Path, old: str, new: str, key: str, decides: str) -> None:
    assert decided(read(tmp_path, APART.replace(old, new))) == {key: decides}


def test_delta_nets_are_whole_on_each_rank(tmp_path: Path) -> None:
    """Qwen3.5's, of the checkpoint's name wherever it lies; where ranks divide the other layers, from above."""
    (tmp_path / "models").mkdir()
    spec = "MODEL_ARGS=(--spec slime_plugins.models.qwen3_5 get_qwen3_5_spec --attention-output-gate"
    (tmp_path / "models/tiny.sh").write_text(MODEL.replace("MODEL_ARGS=(", spec))
    text = APART.replace("~/models/Qwen3-4B\n", "$ROOT/Qwen3.5-4B\n")
    found = read(tmp_path, text)
    assert (found.job.model, found.job.tensor_parallel) == ("Qwen/Qwen3.5-4B", 1)
    assert [each.key for each in found.unread if each.above] == ["tensor_model_parallel_size"]
    assert resolve(found)
    assert not read(tmp_path, text.replace("-parallel-size 2", "-parallel-size 1")).unread


def test_layers_of_slimes_own_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    own = "--spec slime_plugins.models.gpt_oss get_gpt_oss_spec --window-attn-skip-freq 2 --num-experts 32"
    (tmp_path / "models/tiny.sh").write_text(MODEL.replace("MODEL_ARGS=(", f"MODEL_ARGS=({own}"))
    found = read(tmp_path, APART.replace("Qwen3-4B\n", "gpt-oss-20b-bf16\n"))
    assert (found.job.model, found.unread) == ("openai/gpt-oss-20b", ())
    assert resolve(found)


def test_a_script_without_lengths_or_a_model_asks(tmp_path: Path) -> None:
    text = APART.replace("--rollout-max-response-len 8192", "").replace("--max-tokens-per-gpu 9216", "")
    assert "sequence_length" in decided(read(tmp_path, text))
    with pytest.raises(InvalidJob, match="arguments are not here"):
        read(tmp_path, APART.replace("--hf-checkpoint ~/models/Qwen3-4B", ""))


def test_only_ppo_has_a_critic(tmp_path: Path) -> None:
    for estimator, method in (("ppo", "ppo"), ("mine", "grpo")):
        text = SCRIPT.replace("--advantage-estimator grpo", f"--advantage-estimator {estimator}")
        found = read(tmp_path, text)
        assert found.job.method == method, estimator
        assert any("counted as grpo" in each for each in found.warnings) is (estimator == "mine")


def test_a_critic_on_cards_of_the_policy_alone_is_a_bound(tmp_path: Path) -> None:
    """Nothing tells whether what it holds rests on the host there, or is on other GPUs, as to 0.2."""
    found = read(tmp_path, APART.replace("--advantage-estimator grpo", "--advantage-estimator ppo"))
    assert [each.key for each in found.unread if each.above] == ["advantage_estimator"]


@pytest.mark.parametrize(
    ("more", "reference", "unread"),
    [
        ("--opd-type sglang", "none", []),
        ("--opd-type megatron --opd-teacher-load x", "offloaded", []),
        ("", "none", ["use_opd"]),
    ],
)
def test_a_teacher_is_served_elsewhere_or_swapped_in(
    tmp_path: Path, more: str, reference: str, unread: list[str]
) -> None:
    text = APART.replace("--use-kl-loss", "").replace("--rollout-num-gpus 8", f"--rollout-num-gpus 8 --use-opd {more}")
    found = read(tmp_path, text)
    assert (found.job.reference, [each.key for each in found.unread]) == (reference, unread)


PROGRAM = """from dataclasses import dataclass

import typer
from slime.utils.external_utils import command_utils as U


@dataclass
class ScriptArgs:
    model_name: str = "Qwen3-4B"
    gpus: int = 4
    debug: bool = False
    extra_args: str = ""


def execute(args: ScriptArgs):
    ckpt_args = f"--hf-checkpoint models/{args.model_name} --save runs/{U.create_run_id()} "
    rollout_args = (
        "--prompt-data data.jsonl "
        f"--rollout-max-response-len {100 if args.debug else 8192} "
        "--rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 256 "
    )
    perf_args = "--tensor-model-parallel-size 2 --sequence-parallel --recompute-granularity full "
    perf_args += "--recompute-method uniform --recompute-num-layers 1 --use-dynamic-batch-size "
    perf_args += "--max-tokens-per-gpu 9216 "
    misc_args = (
        f"--actor-num-nodes 1 --actor-num-gpus-per-node {args.gpus} --colocate "
        f"{U.get_default_wandb_args(__file__)} "
        "--rollout-num-gpus-per-engine 2 --sglang-mem-fraction-static 0.7 --attention-dropout 0.0 --hidden-dropout 0.0 "
    )
    train_args = f"{ckpt_args} {rollout_args} {perf_args} {misc_args} {args.extra_args} "
    U.execute_train(train_args=train_args, num_gpus_per_node=args.gpus, megatron_model_type="qwen3-4B")


@U.dataclass_cli
def main(args: ScriptArgs):
    execute(args)


if __name__ == "__main__":
    typer.run(main)
"""


def test_a_program_that_puts_the_arguments_together(tmp_path: Path) -> None:
    found = read_text(tmp_path, PROGRAM, "run.py")
    job = found.job
    assert (job.trainer, job.method, job.num_gpus, job.tensor_parallel) == ("slime", "grpo", 4, 2)
    assert (job.sequence_length, job.token_budget, job.gradient_checkpointing) == (8192, 9216, "full")
    assert job.rollout is not None
    assert (job.rollout.placement, job.rollout.mem_fraction_static) == ("colocate", 0.7)
    assert not [each for each in found.unread if each.decides]


@pytest.mark.parametrize(
    "line",
    ["    perf_args += U.more(args)\n", "    if U.is_h100():\n        perf_args += '--context-parallel-size 2 '\n"],
)
def test_arguments_that_a_program_takes_from_elsewhere_are_not_passed_over(tmp_path: Path, line: str) -> None:
    found = read_text(tmp_path, changed(PROGRAM, "    misc_args = (\n", f"{line}    misc_args = (\n"), "run.py")
    assert "parallelism" in {each.decides for each in found.unread if not each.above}


def test_a_program_that_starts_no_training(tmp_path: Path) -> None:
    path = tmp_path / "run.py"
    path.write_text(changed(PROGRAM, "    U.execute_train(", "    U.show("))
    assert check_file(str(path), {"gpu": "h100-80gb"}).fits == "skipped"


@pytest.mark.parametrize(("more", "gpus"), [("--colocate", 8), ("--rollout-num-gpus 4", 4)])
def test_gpus_that_generate_do_not_train(tmp_path: Path, more: str, gpus: int) -> None:
    text = changed(changed(PROGRAM, "--colocate", more), "num_gpus_per_node=args.gpus", "num_gpus_per_node=8")
    assert read_text(tmp_path, text, "run.py", num_gpus=8).job.num_gpus == gpus


def test_how_many_engines_there_are_no_card_feels(tmp_path: Path) -> None:
    text = changed(APART, "--rollout-num-gpus 8", "--rollout-num-gpus $GPUS --rollout-num-gpus-per-engine 2")
    found = read(tmp_path, text)
    assert found.job.rollout is not None
    assert found.job.rollout.num_gpus == found.job.rollout.tensor_parallel == 2
    assert not [each for each in found.unread if each.decides]


def test_what_stands_behind_a_file_that_is_written_to_is_read(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/tiny.sh").write_text(MODEL)
    text = changed(SCRIPT, "ENGINE", "> train.log 2>&1 --colocate")
    assert read(tmp_path, text).job == read(tmp_path, changed(SCRIPT, "ENGINE", "--colocate")).job


@pytest.mark.parametrize(
    ("longest", "said"),
    [("8192", "no longer than"), ("9216", "as long as"), ("9216 --rollout-max-prompt-len 1024", "")],
)
def test_prompts_that_nothing_bounds_are_said(tmp_path: Path, longest: str, said: str) -> None:
    text = changed(APART, "--rollout-max-response-len 8192", f"--rollout-max-response-len {longest}")
    found = read(tmp_path, text)
    assert [said in line for line in found.warnings if "nothing bounds prompts" in line] == [True] * bool(said)
    alone = changed(text, "--use-dynamic-batch-size", "--micro-batch-size 4")  # of whole samples, prompts and all
    assert ("sequence_length" in decided(read(tmp_path, alone))) is bool(said)
    assert "sequence_length" not in decided(read(tmp_path, alone, sequence_length=12000))


def test_a_length_of_ones_own_is_a_micro_batch(tmp_path: Path) -> None:
    assert read(tmp_path, APART, sequence_length=20000).job.token_budget == 20000


@pytest.mark.parametrize(
    ("words", "decides"),
    [
        ("--custom-model-provider-path my.model", {"custom_model_provider_path": "model"}),
        ("--custom-loss-function-path my.loss", {"custom_loss_function_path": "loss"}),
        ("--data-pad-size-multiplier 4096", {"data_pad_size_multiplier": "lengths"}),
        ("--data-pad-size-multiplier 128 --data-source-path a.b --disable-rewards-normalization", {}),
        ("--keep-peft-layers 4", {"keep_peft_layers": "adapters"}),
        ("--disable-activation-checkpointing-layers 4", {"disable_activation_checkpointing_layers": "checkpointing"}),
    ],
)
def test_names_that_slime_does_not_have_are_not_harmless(tmp_path: Path, words: str, decides: dict[str, str]) -> None:
    assert decided(read(tmp_path, APART.replace("train.py", f"train.py {words}"))) == decides


def test_a_model_that_sees_is_its_checkpoint_with_a_tower_whatever_the_arguments_say(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny.sh").write_text(MODEL)
    found = read(tmp_path, APART.replace("Qwen3-4B", "Qwen2.5-VL-3B-Instruct"))
    assert (found.job.model, found.job.images is not None) == ("Qwen/Qwen2.5-VL-3B-Instruct", True)
    assert all(each.above for each in found.unread)
    assert resolve(found)


def test_what_a_layer_of_the_checkpoint_drafts_is_the_engines(tmp_path: Path) -> None:
    drafts = "--colocate --sglang-speculative-algorithm EAGLE --sglang-speculative-num-draft-tokens 3"
    text = SCRIPT.replace("ENGINE", drafts)
    found = read(tmp_path, text)
    assert found.job.rollout is not None
    assert (found.job.rollout.draft, found.job.rollout.draft_tokens, decided(found)) == ("mtp", 3, {})
    assert set(decided(read(tmp_path, text.replace("EAGLE", "EAGLE3"))).values()) == {"engine"}

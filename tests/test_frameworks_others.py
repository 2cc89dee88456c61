"""Proves what is read of the files of LLaMA-Factory, verl, OpenRLHF, Megatron, torchtitan and LitGPT, and that what
is written for them comes back as the same job.
"""

from pathlib import Path
from typing import Any

import pytest
from drawing import examples
from framework_cases import DRAWN, FILES, LINES, LLAMAFACTORY, REFUSED, SAID, UNREAD
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from memplan.errors import InvalidJob, MemplanError
from memplan.frameworks.checks.checking import check_file
from memplan.frameworks.commands.scripts import run_script
from memplan.frameworks.emit.writing import emit
from memplan.frameworks.reading import framework_of, read_target
from memplan.frameworks.registry import find_framework
from memplan.frameworks.shell.sums import whole_sum
from memplan.resolve import resolve
from memplan.spec.reading import JobInput, read_job


def read(tmp_path: Path, name: str, more: str = "", **options: Any) -> JobInput:
    file, text = FILES[name]
    path = tmp_path / file
    space = " " if file.endswith(".sh") else ""
    path.write_text(f"{text}{space}{more}\n" if more else text, encoding="utf-8")
    return read_target(str(path), options)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_known_and_read(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, name)
    assert framework_of(str(tmp_path / FILES[name][0])).name == name
    assert {key: getattr(found.job, key) for key in SAID[name]} == SAID[name]
    of_engine = "the generation engine (vllm) beside the trainer is not counted"  # verl's is told, and nothing else
    assert not [line for line in found.warnings if "not counted" in line and of_engine not in line]
    assert resolve(found)


@pytest.mark.parametrize(("name", "line", "key", "value"), LINES)
def test_one_key(tmp_path: Path, name: str, line: str, key: str, value: object) -> None:
    assert getattr(read(tmp_path, name, line).job, key) == value


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_not_understood_is_named_with_its_line(tmp_path: Path, name: str) -> None:
    more, keys = UNREAD[name]
    warnings = read(tmp_path, name, more).warnings
    for key in keys:
        assert any("line" in line and key in line and " counted" in line for line in warnings), (key, warnings)


def test_a_command_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.yaml").write_text(LLAMAFACTORY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    job = read_target("llamafactory-cli train train.yaml cutoff_len=512 lora_rank=4", {}).job
    assert (job.sequence_length, job.lora.r if job.lora else 0, job.batch_size) == (512, 4, 2)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("llamafactory", LLAMAFACTORY.replace("stage: dpo", "stage: ppo"), r"line 2: stage: 'ppo' is not modelled"),
        ("llamafactory", LLAMAFACTORY.replace("fa2", "fa9"), r"line 14: flash_attn: 'fa9' is no attention"),
    ],
)
def test_what_cannot_be_read_says_where(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / FILES[name][0]
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidJob, match=message):
        read_target(str(path), {})


@pytest.mark.parametrize("name", DRAWN)
@examples(12, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_drawn_jobs_come_back(name: str, data: st.DataObject) -> None:
    required, optional = ({key: st.sampled_from(row) for key, row in rows.items()} for rows in DRAWN[name])
    keys = data.draw(st.fixed_dictionaries(required, optional=optional))
    if name == "openrlhf" and keys.get("method") == "ppo":
        keys["rollout"] = {"placement": "colocate"}  # elsewhere its critic is on GPUs of its own
    try:
        asked = read_job({"model": "smollm2-135m", **keys})
        resolve(asked)
    except MemplanError:
        assume(False)
    assert emit(asked, find_framework(name)).texts


@pytest.mark.parametrize(("name", "keys", "message"), REFUSED)
def test_what_a_framework_cannot_say_is_refused(name: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        emit(read_job({"model": "smollm2-135m", **keys}), find_framework(name))


@pytest.mark.parametrize(
    ("more", "shape"),
    [
        ("", {"model_type": "llama", "num_key_value_heads": 8, "intermediate_size": 2816, "vocab_size": 32000}),
        ("--add-qkv-bias", {"model_type": "qwen2"}),
        ("--qk-layernorm", {"model_type": "qwen3", "head_dim": 64}),
        ("--num-experts 8 --moe-router-topk 2", {"model_type": "mixtral", "num_local_experts": 8}),
        (
            "--multi-latent-attention --num-experts 8 --moe-ffn-hidden-size 512 --moe-layer-freq ([0]*1+[1]*3)",
            {"model_type": "deepseek_v3", "n_routed_experts": 8, "first_k_dense_replace": 1},
        ),
    ],
)
def test_the_model_that_megatrons_arguments_describe(tmp_path: Path, more: str, shape: dict[str, Any]) -> None:
    config = read(tmp_path, "megatron", more).job.model
    assert isinstance(config, dict)
    assert {key: config[key] for key in shape} == shape


def test_arguments_of_megatron_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "model_config.yaml"
    numbers = {"num-layers": 2, "hidden-size": 256, "num-attention-heads": 4, "vocab-size": 1000, "seq-length": 512}
    words = numbers | {"micro-batch-size": 4, "swiglu": "true", "bf16": "true"}
    path.write_text(
        "MODEL_ARGS:\n" + "".join(f"  --{key}: {value}\n" for key, value in words.items()), encoding="utf-8"
    )
    job = read_target(str(path), {}).job
    assert (job.trainer, job.batch_size, job.sequence_length, job.sharding) == ("megatron", 4, 512, "ddp")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A=(x y)\nrun ${A[@]} z", ["run", "x", "y", "z"]),
        ('A="\n  --a 1 \\\n  --b"\nrun ${A[@]} z', ["run", "--a", "1", "--b", "z"]),
        ("A=${A:-7}\nB=$((A * 2 + 1))\nrun --n $B", ["run", "--n", "15"]),
        ('A=${A:-"-m x"}\nrun $A', ["run", "-m", "x"]),
        ('A=1\nif [ -n "$1" ]; then\n  A=2\nfi\nrun $A', ["run", "1"]),
        ("A=()\nA+=(1)\nA+=(\n  2 # two\n)\nrun ${A[@]}", ["run", "1", "2"]),
        ('ARGS="\n  --a 1 \\\n  --b 2\n"\nrun $ARGS', ["run", "--a", "1", "--b", "2"]),
        ("srun bash -c '\n  run --n \\\n    4\n'", ["run", "--n", "4"]),
        ("run $NOBODY '$1'", ["run", "$NOBODY", "$1"]),
        ("run $(rm -rf x)", ["run", "$(rm -rf x)"]),
    ],
)
def test_what_a_script_comes_to(text: str, words: list[str]) -> None:
    assert [word.text for word in run_script(text, "a.sh").commands[-1].words] == words


@pytest.mark.parametrize(("text", "value"), [("2*(3+4)", 14), ("1/0", None), ("2**9", 512), ("x+1", None)])
def test_sums_of_whole_numbers(text: str, value: int | None) -> None:
    assert whole_sum(text) == value


OLD_PPO = """python3 -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen2.5-0.5B --actor_num_gpus_per_node 2 """


@pytest.mark.parametrize(
    ("more", "length", "completion", "micro"),
    [
        ("--prompt_max_len 512 --generate_max_len 256", 768, 256, 4),
        ("--prompt_max_len 512 --micro_train_batch_size 2", 1536, 1024, 2),
        ("--generate_max_len 3000", 4024, 3000, 4),
        ("--max_len 4096 --generate_max_len 3000", 4096, 3000, 1),
        ("", 2048, None, 1),
    ],
)
def test_ppo_before_0_10_bounds_prompt_and_completion(
    tmp_path: Path, more: str, length: int, completion: int | None, micro: int
) -> None:
    path = tmp_path / "ppo.sh"
    path.write_text(f"{OLD_PPO} --flash_attn --bf16 {more}\n", encoding="utf-8")
    job = read_target(str(path), {}).job
    assert (job.sequence_length, job.completion_length, job.batch_size) == (length, completion, micro)


def test_openrlhf_before_0_9_runs_eager_without_flash_attn(tmp_path: Path) -> None:
    path = tmp_path / "sft.sh"
    text = "deepspeed --module openrlhf.cli.train_sft --pretrain Qwen/Qwen2.5-0.5B --zero_stage 3 --zpg 8"
    path.write_text(f"{text} --bf16\n", encoding="utf-8")
    found = read_target(str(path), {"num_gpus": 8})
    assert [each.decides for each in found.unread if each.key == "bf16"] == ["attention"]
    assert found.job.deepspeed.zero_hpz_partition_size == 8
    (tmp_path / "openrlhf").mkdir()
    (tmp_path / "openrlhf/__init__.py").touch()
    for version, above in (("0.4.1", False), ("0.10.0", True)):
        (tmp_path / "version.txt").write_text(version)
        found = read_target(str(path), {"num_gpus": 8})
        assert (found.job.attention, any(each.key == "bf16" for each in found.unread)) == ("eager", above)
    for version, head in (("0.5.9", "cross-entropy"), ("0.6.0.post2", "auto")):
        (tmp_path / "version.txt").write_text(version)
        assert read_target(str(path), {"num_gpus": 8}).job.loss_head == head
    (tmp_path / "version.txt").unlink()
    (tmp_path / "openrlhf/models").mkdir()
    for code, head in (("F.log_softmax(logits, dim=-1)", "cross-entropy"), ("logits - logits.logsumexp()", "auto")):
        (tmp_path / "openrlhf/models/utils.py").write_text(code)
        assert read_target(str(path), {"num_gpus": 8}).job.loss_head == head
    path.write_text(f"{text} --bf16 --flash_attn\n", encoding="utf-8")
    assert not any(each.key == "bf16" for each in read_target(str(path), {"num_gpus": 8}).unread)


PPO_RAY = """python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen2.5-0.5B --data.max_len 1024 \\
  --reward.model_name_or_path Qwen/Qwen2.5-1.5B --actor.num_gpus_per_node 2 --vllm.num_engines 2 """


@pytest.mark.parametrize(
    ("more", "method", "reference", "beside"),
    [
        ("", "grpo", "none", []),
        ("--train.colocate_actor_ref", "grpo", "resident", []),
        ("--train.colocate_all --vllm.enable_sleep", "ppo", "resident", ["critic", "reward"]),
        ("--colocate_all_models --vllm_enable_sleep --reward.offload", "ppo", "resident", ["critic"]),
        ("--train.colocate_all --reward.remote_url http://x --ref.offload", "ppo", "offloaded", []),
    ],
)
def test_what_stands_on_the_policys_gpus(
    tmp_path: Path, more: str, method: str, reference: str, beside: list[str]
) -> None:
    path = tmp_path / "ppo.sh"
    path.write_text(PPO_RAY + more, encoding="utf-8")
    found = read_target(str(path), {})
    assert (found.job.method, found.job.reference) == (method, reference)
    assert [extra.role for extra in found.job.extra_models] == beside
    rollout = found.job.rollout
    assert rollout is not None
    together = "colocate_all" in more
    assert (rollout.engine, rollout.placement) == ("vllm", "colocate" if together else "separate")
    assert rollout.sleep == (None if not together else "1" if "sleep" in more else "none")


def test_a_critic_on_fewer_gpus_than_the_policys_is_unclear(tmp_path: Path) -> None:
    for more, asked in (("--critic.num_gpus_per_node 2", []), ("--critic.num_gpus_per_node 1", ["parallelism"])):
        (tmp_path / "ppo.sh").write_text(f"{PPO_RAY}{more}", encoding="utf-8")
        found = read_target(str(tmp_path / "ppo.sh"), {})
        assert [each.decides for each in found.unread if "critic" in each.key] == asked


VERL_APART = (
    "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B trainer.n_gpus_per_node=4 "
)
SERVED = "NPROC_PER_NODE=4 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-0.5B --max_length 512 --use_vllm true "
LEARNERS = "python open_instruct/grpo_fast.py --model_name_or_path Qwen/Qwen2.5-0.5B --num_learners_per_node 2 1 "


@pytest.mark.parametrize(
    ("text", "trains"),
    [
        (PPO_RAY, 2),
        (f"{PPO_RAY} --train.colocate_all", 8),
        (f"{VERL_APART} trainer.nnodes=1 rollout.n_gpus_per_node=4 actor_rollout_ref.hybrid_engine=False", 4),
        (VERL_APART, 8),
        (LEARNERS, 3),
        (f"{LEARNERS} --single_gpu_mode", 8),
        (f"{SERVED} --vllm_mode server --vllm_server_host 127.0.0.1", 4),
        (f"{SERVED} --vllm_mode colocate", 8),
    ],
)
def test_gpus_that_generate_do_not_train(tmp_path: Path, text: str, trains: int) -> None:
    path = tmp_path / "rl.sh"
    path.write_text(text, encoding="utf-8")
    assert read_target(str(path), {"num_gpus": 8}).job.num_gpus == trains


def test_ppo_without_ray_has_all_its_models_on_each_card(tmp_path: Path) -> None:
    path = tmp_path / "ppo.sh"
    options = "--pretrain Qwen/Qwen2.5-0.5B --reward_pretrain Qwen/Qwen2.5-1.5B --generate_max_len 512"
    path.write_text(f"deepspeed --num_gpus 4 --module openrlhf.cli.train_ppo {options}", encoding="utf-8")
    job = read_target(str(path), {}).job
    assert (job.method, job.num_gpus, job.reference, job.sequence_length) == ("ppo", 4, "resident", 1024 + 512)
    assert [extra.role for extra in job.extra_models] == ["critic", "reward"]
    assert job.rollout is not None
    assert job.rollout.engine == "hf"


def test_a_process_reward_models_loss_is_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "prm.sh"
    options = "--pretrain Qwen/Qwen2.5-0.5B --placeholder_token x --reward_tokens + -"
    path.write_text(f"deepspeed --num_gpus 4 --module openrlhf.cli.train_prm {options}", encoding="utf-8")
    found = read_target(str(path), {})
    assert (found.job.method, found.job.loss_head, found.job.sequence_length) == ("sft", "cross-entropy", 2048)
    assert [each.key for each in found.unread if each.above] == ["placeholder_token"]


def test_two_graphs_of_kto_are_those_of_pairs_in_two_forwards(tmp_path: Path) -> None:
    path = tmp_path / "kto.sh"
    path.write_text("deepspeed --num_gpus 4 --module openrlhf.cli.train_kto --pretrain Qwen/Qwen2.5-0.5B --beta 0.1")
    found = read_target(str(path), {})
    assert (found.job.method, found.job.pair_pass, found.job.batch_size) == ("dpo", "two-forward", 8)
    assert [each.decides for each in found.unread if each.above] == ["method"]


@pytest.mark.parametrize("key", ["export_dir: merged", "infer_backend: vllm", "do_predict: true", "lang: en"])
def test_llamafactory_trains_nothing_without_do_train(tmp_path: Path, key: str) -> None:
    path = tmp_path / "merge.yaml"
    text = f"model_name_or_path: Qwen/Qwen2.5-0.5B\ntemplate: qwen\nfinetuning_type: lora\nstage: sft\n{key}\n"
    path.write_text(text)
    assert check_file(str(path), {"gpu": "h100-80gb"}).fits == "skipped"
    path.write_text(f"{text}do_train: true\ncutoff_len: 512\n")
    assert check_file(str(path), {"gpu": "h100-80gb"}).fits == "yes"


OLD_RLHF = (
    "deepspeed --num_gpus 2 --module openrlhf.cli.train_sft --pretrain Qwen/Qwen2.5-0.5B --max_len 1024 "
    "--micro_train_batch_size 1 --train_batch_size 8 --zero_stage 2 --bf16 "
)


@pytest.mark.parametrize(
    ("more", "above", "attention"),
    [
        ("", ["bf16"], "eager"),
        ("--pretrain_mode", ["bf16"], "eager"),
        ("--flash_attn", [], "flash"),
        ("--flash_attn --packing_samples --ring_attn_size 2", [], "flash"),
    ],
)
def test_older_openrlhf_is_counted_from_above(tmp_path: Path, more: str, above: list[str], attention: str) -> None:
    path = tmp_path / "sft.sh"
    path.write_text(f"{OLD_RLHF}{more}\n")
    found = read_target(str(path), {})
    assert found.job.attention == attention
    assert [each.key for each in found.unread if each.above] == above
    assert not [each for each in found.unread if each.decides and not each.above]


@pytest.mark.parametrize(("program", "unclear"), [("pretrain_gpt.py", False), ("pretrain_maskllm.py", True)])
def test_arguments_of_a_projects_own_program_may_change_the_model(tmp_path: Path, program: str, unclear: bool) -> None:
    text = FILES["megatron"][1].replace("pretrain_gpt.py", program)
    assert program in text
    path = tmp_path / "train.sh"
    path.write_text(f"{text.rstrip()} --mask-only --run-name-path x\n", encoding="utf-8")
    found = check_file(str(path), {"gpu": "h100-80gb"})
    decides = {each["key"]: each["decides"] for each in found.unread}
    assert decides["mask_only"] == ("model" if unclear else "")
    assert not decides["run_name_path"]

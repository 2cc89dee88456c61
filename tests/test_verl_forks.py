"""Proves what is read of forks of verl, of EasyR1 and of OpenRLHF's scores: the version that lies in the project,
settings of their own, lengths, an engine that sleeps whatever the file says, the compiled entropy.
"""

from pathlib import Path
from typing import Any

import pytest

from memplan.api import estimate
from memplan.frameworks.checks.checking import check_file
from memplan.frameworks.commands.hydra import of_program
from memplan.frameworks.deciding import no_less, subject_of
from memplan.frameworks.reading import read_target
from memplan.spec.reading import JobInput
from memplan.tables.trainers import find_trainer

A, M, R = "actor_rollout_ref.actor.", "actor_rollout_ref.model.", "actor_rollout_ref.rollout."
RL = f"""python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo {M}path=Qwen/Qwen2.5-0.5B \\
    data.max_prompt_length=512 data.max_response_length=512 {A}ppo_mini_batch_size=64 {R}n=4 \\
    {A}ppo_micro_batch_size_per_gpu=4 trainer.n_gpus_per_node=8 """
RLHF = """python3 -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen2.5-0.5B --actor_num_gpus_per_node 8 --bf16 \\
    --prompt_max_len 512 --generate_max_len 512 --advantage_estimator rloo --packing_samples --zero_stage 3 \\
    --micro_train_batch_size 2 --train_batch_size 128 --remote_rm_url localhost """


def read(tmp_path: Path, text: str, name: str = "run.sh", **options: Any) -> JobInput:
    (tmp_path / name).write_text(f"{text}\n", encoding="utf-8")
    return read_target(str(tmp_path / name), options)


def deciding(found: JobInput) -> dict[str, str]:
    return {each.key: each.asks or each.decides for each in found.unread if each.decides}


def with_code(tmp_path: Path, version: str) -> None:
    """verl's code beside the script, of this version."""
    (tmp_path / "verl" / "version").mkdir(parents=True)
    (tmp_path / "verl" / "version" / "version").write_text(f"{version}\n")


@pytest.mark.parametrize(
    ("code", "more", "version"),
    [
        ("0.5.0.dev", "", "0.5"),
        ("0.3.1.dev", "", "0.4"),
        ("0.4.1", f"{M}use_remove_padding=True", "0.4"),
        ("0.2.0.dev", "trainer.val_before_train=False", "0.4"),  # what the file sets is stronger
        ("12.0", "trainer.val_before_train=False", "0.4"),
        ("none", "trainer.val_before_train=False", "0.4"),
    ],
)
def test_the_version_that_lies_beside(tmp_path: Path, code: str, more: str, version: str) -> None:
    with_code(tmp_path, code)
    assert read(tmp_path, f"{RL} {more}").job.trainer_version == version


def test_the_defaults_of_a_fork_are_its_own(tmp_path: Path) -> None:
    """The config beside the program in the project, put together of its parts, under what the script says; a setting of
    the fork's own, references to what is not there, the column of images and a model at home say nothing."""
    folder = tmp_path / "mine" / "verl" / "trainer"
    (folder / "config" / "actor").mkdir(parents=True)
    (tmp_path / "requirements.txt").write_text("vllm==0.6.3\n")
    (folder / "main_ppo.py").write_text('@hydra.main(config_path="config", config_name="ppo_trainer")\n')
    (folder / "config" / "actor" / "dp.yaml").write_text("entropy_coeff: 0.001\nppo_max_token_len_per_gpu: 9000\n")
    (folder / "config" / "ppo_trainer.yaml").write_text(
        "defaults:\n  - actor@actor_rollout_ref.actor: dp\n  - _self_\n"
        "data: {max_prompt_length: 700, max_response_length: 300, image_key: images, reward_batch: 8}\n"
        "actor_rollout_ref:\n  model: {path: ~/models/none, use_remove_padding: true}\n"
        "  actor: {use_dynamic_bsz: true, ppo_epochs: '${oc.env:EPOCHS}'}\n"
        "  rollout: {n: 7, tensor_model_parallel_size: 4, free_cache_engine: false}\n"
        "algorithm: {adv_estimator: grpo}\ncritic: {model: {path: ~/models/none}}\n"
    )
    run = f"python3 -m mine.verl.trainer.main_ppo {M}path=Qwen/Qwen2.5-0.5B data.max_prompt_length=512 trainer.nnodes=1"
    found = read(tmp_path, run, num_gpus=8, gpu="a100-80gb")
    job = found.job
    assert job.rollout is not None
    assert (job.method, job.sequence_length, job.token_budget, job.entropy) == ("grpo", 812, 9000, "loss")
    assert job.rollout is not None
    assert (job.rollout.group_size, job.rollout.tensor_parallel, job.rollout.sleep) == (7, 4, "none")
    assert not deciding(found)
    (tmp_path / "run.sh").write_text(run.replace("Qwen/Qwen2.5-0.5B", "YOUR_MODEL"))
    away = check_file(str(tmp_path / "run.sh"), {"num_gpus": 8, "gpu": "a100-80gb"})
    assert away.hint == "add --model, such as --model Qwen/Qwen2.5-7B"


def test_a_recipes_config_stands_over_that_of_its_search_path(tmp_path: Path) -> None:
    for name in ("verl/trainer/config", "recipe/mine/config"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "README.md").write_text("")
    (tmp_path / "verl/trainer/config/ppo_trainer.yaml").write_text(
        "data: {max_prompt_length: 700, max_response_length: 100}\nactor_rollout_ref: {rollout: {n: 7}}\n"
    )
    (tmp_path / "recipe/mine/main_dapo.py").write_text('@hydra.main(config_path="config", config_name="dapo_trainer")')
    (tmp_path / "recipe/mine/config/dapo_trainer.yaml").write_text(
        "hydra: {searchpath: [file://verl/trainer/config]}\ndefaults: [ppo_trainer, _self_]\n"
        "data: {max_response_length: 300}\n"
    )
    run = f"python3 -m recipe.mine.main_dapo algorithm.adv_estimator=grpo {M}path=Qwen/Qwen2.5-0.5B"
    job = read(tmp_path, run, num_gpus=8).job
    assert job.rollout is not None
    assert (job.sequence_length, job.rollout.group_size) == (1000, 7)


def test_what_a_command_says_stands_where_its_config_names_it(tmp_path: Path) -> None:
    """Names of a config's own that settings refer to, and settings that refer to others, two deep."""
    (tmp_path / "config").mkdir()
    (tmp_path / "README.md").write_text("")
    (tmp_path / "config/mine.yaml").write_text(
        "model_path: Qwen/Qwen2.5-7B\nmicro: 4\nlora: {rank: 0}\n"
        "data: {max_prompt_length: 512, max_response_length: 512}\n"
        "actor_rollout_ref:\n  model: {path: '${model_path}', lora_rank: '${lora.rank}'}\n"
        "  actor: {use_dynamic_bsz: false, ppo_mini_batch_size: 64, ppo_micro_batch_size_per_gpu: '${micro}'}\n"
        "  rollout: {log_prob_micro_batch_size_per_gpu: '${actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu}'}\n"
        "algorithm: {adv_estimator: grpo}\n"
    )
    (tmp_path / "train.py").write_text('@hydra.main(config_path="config", config_name="mine")\n')
    for where in ("--config-name mine", "--config-path config --config-name mine"):
        run = f"python3 train.py {where} model_path=Qwen/Qwen2.5-0.5B micro=8 odd=1 {R}n=4 trainer.nnodes=1"
        found = read(tmp_path, run, num_gpus=8)
        job = found.job
        assert (job.model, job.batch_size, job.logprob_token_budget, job.lora) == ("Qwen/Qwen2.5-0.5B", 8, None, None)
        assert not deciding(found)


def test_no_estimator_is_the_trainers_own(tmp_path: Path) -> None:
    """As in verl's recipe of SPPO, whose trainer has no critic."""
    assert read(tmp_path, RL.replace("adv_estimator=grpo", "adv_estimator=null")).job.method == "grpo"
    assert read(tmp_path, RL.replace("algorithm.adv_estimator=grpo ", "")).job.method == "ppo"


def test_a_script_that_starts_itself_anew(tmp_path: Path) -> None:
    """``nohup bash "$0" &`` and an end: what runs then is the rest."""
    again = 'if [ "${FOREGROUND:-0}" != 1 ]; then\n  setsid nohup bash "$0" "$@" > log &\n  exit 0\nfi\n'
    assert read(tmp_path, f"{again}{RL}").job.model == "Qwen/Qwen2.5-0.5B"
    again = 'if [ -z "$TMUX" ]; then\n  tmux new-session -d -s "$NAME" "bash $0 inside"\n  exit 0\nfi\n'
    assert read(tmp_path, f"{again}{RL}").job.model == "Qwen/Qwen2.5-0.5B"


def test_which_end_is_cut_names_no_model(tmp_path: Path) -> None:
    assert not deciding(read(tmp_path, f"{RL} trainer.expert_truncation=left"))
    assert deciding(read(tmp_path, f"{RL} trainer.expert_model=Qwen/Qwen3-4B"))


def test_a_model_that_a_fork_scores_with(tmp_path: Path) -> None:
    key = "reward_model.mates.mate_model_name_or_path_list"
    assert deciding(read(tmp_path, f"{RL} {key}='[\"Qwen/Qwen3-0.6B\"]'")) == {key: "model"}
    assert not deciding(read(tmp_path, f"{RL} {key}=null"))


@pytest.mark.parametrize(
    ("code", "more", "sleep", "asked"),
    [
        ("0.3.1.dev", "trainer.val_before_train=False", None, False),  # 0.4 sleeps whatever the file says
        ("0.5.0.dev", "", "none", False),
        ("", "trainer.val_before_train=False", "none", True),
        ("", "trainer.val_before_train=False model_engine=dp", "none", False),  # 0.7
    ],
)
def test_an_engine_that_sleeps_whatever_the_file_says(
    tmp_path: Path, code: str, more: str, sleep: str | None, asked: bool
) -> None:
    if code:
        with_code(tmp_path, code)
    text = f"{RL} {R}free_cache_engine=False {more}"
    found = read(tmp_path, text)
    assert found.job.rollout is not None
    assert found.job.rollout.sleep == sleep
    assert ("rollout.sleep" in deciding(found).values()) is asked
    told = read(tmp_path, text, rollout={"sleep": "1"})
    assert told.job.rollout is not None
    assert told.job.rollout.sleep == "1"
    assert not deciding(told)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("algorithm.exploration.n=4 trainer.method=sage algorithm.max_num_gen_batches=5", {}),
        (f"{A}off_policy_loss_impl=token", {}),
        ("actor_rollout_ref.agent.max_obs_length=512 actor_rollout_ref.agent.max_start_length=1024", {}),
        (
            "actor_rollout_ref.agent.max_obs_length=4096 data.max_begin_length=9",
            {"actor_rollout_ref.agent.max_obs_length": "sequence_length"},
        ),
        (f"{A}inner_batch_size=8", {f"{A}inner_batch_size": "batch_size"}),
        ("trainer.num_gpus=4 algorithm.teacher_model_path=x", {"algorithm.teacher_model_path": "model"}),
        (f"+{A}freeze_prefix=visual", {f"{A}freeze_prefix": "freezing"}),
        (f"{M}enable_activation_offload=True", {f"{M}enable_activation_offload": "checkpointing"}),
    ],
)
def test_settings_of_a_fork_s_own(tmp_path: Path, more: str, said: dict[str, str]) -> None:
    assert deciding(read(tmp_path, f"{RL} {more}", num_gpus=8)) == said


def test_a_typed_command_is_the_script_under_what_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = "import hydra\n@hydra.main(config_path='conf', config_name='usual')\ndef main(config): pass\n"
    script = RL.replace("verl.trainer.main_ppo", "own.main --config-name=mine").replace("Qwen/Qwen2.5-0.5B", "$ROOT/$1")
    (tmp_path / "own" / "conf").mkdir(parents=True)
    (tmp_path / "run.sh").write_text(script.replace("data.max_prompt_length=512", ""))
    (tmp_path / "own" / "main.py").write_text(main)
    (tmp_path / "own" / "conf" / "mine.yaml").write_text("data: {max_prompt_length: 256}\n")
    monkeypatch.chdir(tmp_path.parent)
    found = read_target(f"ROOT=/m bash {tmp_path.name}/run.sh Qwen2.5-1.5B", {})
    assert (found.job.model, found.job.sequence_length) == ("Qwen/Qwen2.5-1.5B", 768)
    assert not deciding(found)


def test_what_is_asked_for_is_answered_by_its_option(tmp_path: Path) -> None:
    text = f"{RL} data.max_begin_length=9000 {A}inner_batch_size=8"
    assert set(deciding(read(tmp_path, text)).values()) == {"sequence_length", "batch_size"}
    found = read(tmp_path, text, sequence_length=2048, batch_size=2)
    assert not deciding(found)
    assert (found.job.sequence_length, found.job.batch_size) == (2048, 2)


def test_strange_settings_are_told_in_one_line(tmp_path: Path) -> None:
    warnings = read(tmp_path, f"{RL} trainer.one=2 trainer.two=3 env.three=2 trainer.four=4 trainer.five=5").warnings
    told = [line for line in warnings if "no settings of verl" in line]
    assert len(told) == 1
    assert "trainer.one" in told[0]
    assert "env.three" not in told[0]


@pytest.mark.parametrize(("gpus", "told"), [(4, True), (8, True), (16, False)])
def test_gpus_of_the_file_that_an_option_changes_are_told(tmp_path: Path, gpus: int, told: bool) -> None:
    found = read(tmp_path, f"{RL} trainer.nnodes=2", num_gpus=gpus)
    assert found.job.num_gpus == gpus
    assert any("the file runs on 16 GPUs, 2 nodes of 8" in line for line in found.warnings) is told


@pytest.mark.parametrize(
    ("start", "prompt", "response", "lengths"), [(2048, 4096, 500, (6144, 4096)), (2048, 1024, 4096, (5120, 4096))]
)
def test_the_longer_of_an_answer_in_turns_and_one_at_once(
    tmp_path: Path, start: int, prompt: int, response: int, lengths: tuple[int, int]
) -> None:
    text = RL.replace("prompt_length=512", f"prompt_length={prompt}").replace(
        "response_length=512", f"response_length={response}"
    )
    job = read(tmp_path, f"{text} data.max_start_length={start} data.max_obs_length=500 data.max_infer_length=500").job
    assert (job.sequence_length, job.completion_length) == lengths


OLD = """data: {max_prompt_length: 512, max_response_length: 512}
algorithm: {adv_estimator: grpo}
worker:
  actor:
    global_batch_size: 16
    micro_batch_size_per_device_for_update: 4
    micro_batch_size_per_device_for_experience: 4
    use_kl_loss: true
    kl_loss_type: low_var_kl
    model: {model_path: Qwen/Qwen2.5-0.5B}
    offload: {param_offload: true, optimizer_offload: true}
  rollout: {n: 4, tensor_parallel_size: 1}
trainer: {n_gpus_per_node: 8, nnodes: 1}
"""


def test_easy_r1_before_padding_free(tmp_path: Path) -> None:
    found = read(tmp_path, OLD, "config.yaml")
    assert not deciding(found)
    assert found.job.padded
    assert found.job.entropy == "loss"
    assert found.job.reference == "offloaded"
    assert found.job.trainer_offload == ("parameters", "optimizer", "gradients")
    text = OLD.replace("param_offload", "offload_params").replace("optimizer_offload", "offload_optimizer")
    newer = read(tmp_path, text.replace("    use_kl_loss: true\n    kl_loss_type: low_var_kl\n", ""), "new.yaml")
    assert not newer.job.padded
    assert newer.job.entropy != "loss"


@pytest.mark.parametrize(
    ("more", "tokens"),
    [
        ("", 8192),  # before 0.10 eight at once
        ("--micro_rollout_batch_size 16", 16384),
        ("--micro_rollout_batch_size 2", None),
        ("--use_dynamic_batch --train_max_tokens_per_gpu 4096 --rollout_max_tokens_per_gpu 8192", 8192),
    ],
)
def test_openrlhf_scores_in_micro_batches_of_their_own(tmp_path: Path, more: str, tokens: int | None) -> None:
    assert read(tmp_path, RLHF + more).job.logprob_token_budget == tokens


def test_openrlhf_s_frozen_prefix_is_counted_from_above(tmp_path: Path) -> None:
    found = check_file(str(write(tmp_path, RLHF + "--freeze_prefix visual")), {"gpu": "h100-80gb"})
    assert found.fits == "yes"
    assert "at most" in found.text


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.sh"
    path.write_text(f"{text}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("key", "subject"),
    [("algorithm.exploration.n", ""), ("qlora", "adapters"), ("use_lora", "adapters"), ("plora_rank", "adapters")],
)
def test_a_word_within_a_word(key: str, subject: str) -> None:
    assert subject_of(key) == subject


@pytest.mark.parametrize(
    ("key", "value", "subject"),
    [
        ("own.context_parallel_size", 1, ""),
        ("own.context_parallel_size", 2, "parallelism"),
        ("own.tp", "1", ""),
        ("own.zero_stage", 1, "parallelism"),
        ("own.use_sequence_parallel", True, "parallelism"),
    ],
)
def test_a_degree_of_one_divides_nothing(key: str, value: object, subject: str) -> None:
    assert subject_of(key, value) == subject


@pytest.mark.parametrize(("value", "less"), [("visual", True), ("true", True), ("false", False), ("none", False)])
def test_what_a_switch_of_rest_names_takes_no_more(value: str, less: bool) -> None:
    assert bool(no_less("freezing", "freeze_prefix", value, {})) is less


JOB: dict[str, Any] = {
    "model": "qwen2.5-0.5b", "trainer": "verl", "trainer_version": "0.3", "method": "grpo", "num_gpus": 8,
    "sharding": "fsdp", "batch_size": 4, "sequence_length": 4096, "completion_length": 3072, "attention": "flash",
    "gradient_checkpointing": "full",
}  # fmt: skip


@pytest.mark.slow
def test_a_compiled_entropy_keeps_the_logits_alone() -> None:
    compiled, eager = (
        estimate(JOB | {"entropy": "loss"} | more).per_gpu.allocated_bytes for more in ({}, {"padded": True})
    )
    logits = 4 * 4096 * 151936 * 2  # in bf16: these, and two gradients of them or the exponentials in fp32
    assert 3 * logits < compiled < 4 * logits
    assert eager > compiled + 2 * logits


@pytest.mark.slow
def test_before_0_9_the_temperature_divides_in_place() -> None:
    old, new = (
        estimate(JOB | {"entropy": "none", "temperature": 0.6, "trainer_version": version}).per_gpu.allocated_bytes
        for version in ("0.8", "0.9")
    )
    assert new - old > 0.9 * 4 * 4096 * 151936 * 2


@pytest.mark.parametrize(
    ("more", "tokens"),
    [
        ("data.train_batch_size=64", 16 * 1024),
        ("data.train_batch_size=8", None),  # 4 completions a rank, which is the update's micro-batch
        ("data.train_batch_size=8 env.rollout.n=8", 16 * 1024),  # a fork makes others
    ],
)
def test_scores_take_no_more_than_all_completions(tmp_path: Path, more: str, tokens: int | None) -> None:
    found = read(tmp_path, f"{RL} {R}log_prob_micro_batch_size_per_gpu=16 {more}")
    assert found.job.logprob_token_budget == tokens


def test_openrlhf_scores_no_more_than_all_completions(tmp_path: Path) -> None:
    more = "--micro_rollout_batch_size 24 --rollout_batch_size 8 --n_samples_per_prompt 3"
    assert read(tmp_path, RLHF + more).job.logprob_token_budget == 3 * 1024


def test_a_second_model_of_a_fork_s_own_is_told_once(tmp_path: Path) -> None:
    own = "hinter.model.path=Qwen/Qwen2.5-0.5B hinter.actor.ppo_mini_batch_size=4 hinter.rollout.n=3"
    assert deciding(read(tmp_path, f"{RL} {own} {R}free_cache_engine=True")) == {"hinter.model.path": "model"}


@pytest.mark.parametrize("key", ["data.image_key=images", ""])
def test_images_that_the_data_has(tmp_path: Path, key: str) -> None:
    text = RL.replace("Qwen/Qwen2.5-0.5B", "google/gemma-4-e2b" if key else "google/medgemma-4b-it")
    assert any(each.asks == "images" for each in read(tmp_path, f"{text} {key}").unread)


def test_remedies_are_of_the_version() -> None:
    for version, knows in (("0.1", False), ("0.5", True)):
        row = find_trainer("verl", version)
        assert ("fused" in row.switches["loss_head"], "fsdp2" in row.switches["sharding"]) == (knows, knows)


@pytest.mark.parametrize(("gpus", "told"), [(4, True), (8, False)])
def test_another_number_of_gpus_than_the_file_s_is_told(tmp_path: Path, gpus: int, told: bool) -> None:
    warnings = read(tmp_path, RLHF, num_gpus=gpus).warnings
    assert any(f"the file runs on 8 GPUs: {gpus} are counted" in line for line in warnings) is told


@pytest.mark.slow
def test_scores_without_an_entropy_where_a_fork_makes_none(tmp_path: Path) -> None:
    text = OLD.replace("    use_kl_loss: true\n    kl_loss_type: low_var_kl\n    ", "    ").replace(
        "{param_offload: true, optimizer_offload: true}", "{offload_params: true}"
    )
    found = read(tmp_path, text.replace("for_experience: 4", "for_experience: 16"), "new.yaml")
    assert found.job.entropy == "unscored"
    with_one = JOB | {"logprob_token_budget": 65536}
    ways: tuple[dict[str, str], ...] = {"entropy": "unscored"}, {"entropy": "none"}, {}
    needed = [estimate(with_one | more).per_gpu.allocated_bytes for more in ways]
    assert needed[1] - needed[0] > 65536 * 151936 * 2
    assert needed[1] == needed[2]


def test_a_package_in_a_defaults_list_is_relative_to_its_config(tmp_path: Path) -> None:
    """As verl's own actor has its engine: ``../engine@megatron: megatron`` stands in actor_rollout_ref.actor."""
    for name, text in {
        "ppo_trainer": "defaults: [{actor@actor_rollout_ref.actor: mine}, _self_]\ndata: {max_response_length: 100}\n",
        "actor/mine": "defaults: [{../engine@engine: small}, _self_]\nppo_mini_batch_size: 8\n",
        "engine/small": "depth: 3\n",
    }.items():
        file = tmp_path / "verl/trainer/config" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "verl/trainer/main_ppo.py").write_text('@hydra.main(config_path="config", config_name="ppo_trainer")')
    found = of_program(str(tmp_path / "run.sh"), "verl/trainer/main_ppo.py", "", "")
    assert found is not None
    assert found.values["actor_rollout_ref"]["actor"] == {"engine": {"depth": 3}, "ppo_mini_batch_size": 8}


def test_an_actor_of_the_projects_own_that_copies_the_logits_is_unclear_where_it_is_asked_to(tmp_path: Path) -> None:
    code = """class A:
    def _forward_micro_batch(self, top):
        log_probs = logprobs_from_logits(logits=logits_rmpad, labels=labels)
        if top:
            copies = logits_rmpad.expand(3, -1)
            return logprobs_from_logits(logits_of_top, labels)
"""
    (tmp_path / "verl/workers/actor").mkdir(parents=True)
    (tmp_path / "setup.py").touch()
    (tmp_path / "verl/workers/actor/dp_actor.py").write_text(code)
    assert deciding(read(tmp_path, f"{RL} {A}soft=True")) == {}
    assert deciding(read(tmp_path, f"{RL} {A}top=True")) == {f"{A}top": "loss"}
    (tmp_path / "verl/workers/actor/dp_actor.py").write_text(code.replace("if top", "if self.use_remove_padding"))
    assert deciding(read(tmp_path, RL)) == {f"{A}strategy": "loss"}
    of_verl = code.replace("expand(3, -1)", "sum(-1)").replace(
        "logprobs_from_logits(", "log_probs_from_logits_all_rmpad("
    )
    (tmp_path / "verl/workers/actor/dp_actor.py").write_text(of_verl)
    assert deciding(read(tmp_path, RL)) == {}
    (tmp_path / "verl-0.4.x").mkdir()  # the repository, by its version; a function of its own after verl's name
    (tmp_path / "verl").rename(tmp_path / "verl-0.4.x/verl")
    own = code.replace("expand(3, -1)", "sum(-1)").replace("from_logits(logits=", "from_logits_soft(x=")
    (tmp_path / "verl-0.4.x/verl/workers/actor/dp_actor.py").write_text(own)
    assert deciding(read(tmp_path, RL)) == {f"{A}strategy": "loss"}


def test_a_model_of_the_projects_own_name_beside_the_policy_is_unclear(tmp_path: Path) -> None:
    assert deciding(read(tmp_path, f"{RL} {M}proposer_path=a/b {M}log_path=x")) == {f"{M}proposer_path": "model"}


def test_weights_gathered_in_the_other_half_are_as_large(tmp_path: Path) -> None:
    at = f"{A}fsdp_config.mixed_precision.param_dtype"
    assert [deciding(read(tmp_path, f"{RL} {at}={word}")) for word in ("fp16", "fp32")] == [{}, {at: "precision"}]


def test_a_repository_of_verls_within_the_project_says_its_version_too(tmp_path: Path) -> None:
    for number, folder in enumerate(("external/verl", "verl")):
        (tmp_path / folder / "verl/version").mkdir(parents=True)
        (tmp_path / folder / "verl/version/version").write_text(f"0.{4 + number}.1\n")
        assert read(tmp_path, f"{RL} {M}use_remove_padding=True").job.trainer_version == f"0.{4 + number}"


def with_actor(tmp_path: Path, update: str, **files: str) -> None:
    """A project with an actor whose update is this, and other files of verl's."""
    actor = f"""class A:
    def _forward_micro_batch(self, calculate_entropy=False):
        log_probs = logprobs_from_logits(logits=logits_rmpad, labels=labels)
        if calculate_entropy:
            entropy = self.compute_entropy_from_logits(logits_rmpad)
    def update_policy(self, data):
        items = data.meta_info.get("items", None)
        if self.config.grad_clip:
            clip_grad_norm_(self.actor_module, 1)
{update}
    def never(self):
        self.actor_module(1)
"""
    (tmp_path / "setup.py").touch()
    names = {"actor": "workers/actor/dp_actor", "workers": "workers/fsdp_workers", "trainer": "trainer/ppo/ray_trainer",
             "main": "trainer/main_ppo"}  # fmt: skip
    for name, text in {"actor": actor, "main": "", **files}.items():
        path = tmp_path / "verl" / f"{names[name]}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


PASS = "        self._forward_micro_batch(calculate_entropy=entropy)\n"


@pytest.mark.parametrize(
    ("update", "more", "main", "said"),
    [
        (PASS, "", "", {}),
        (f"        if self.config.two:\n    {PASS}        else:\n    {PASS}", f"{A}two=True", "", {}),
        (PASS + PASS, "", "", {f"{A}strategy": "activations"}),
        (f"{PASS}        if self.config.get('own'):\n            kl(model=self.actor_module)", "", "", {}),
        (
            f"{PASS}        if self.config.get('own'):\n            kl(model=self.actor_module)",
            f"{A}own=True",
            "",
            {f"{A}own": "activations"},
        ),
        (f"{PASS}        if items is not None:\n            self.other(items)", "", "", {}),
        (f"{PASS}        if items is not None:\n            self.never()", "", "", {}),
        (
            f"{PASS}        if items is not None:\n            self.never()",
            "",
            "data.meta_info['items'] = 1",
            {f"{A}strategy": "activations"},
        ),
        (f"{PASS}        if self.config.get('own') == 'two':\n            self.never()", f"{A}own=one", "", {}),
        (
            f"{PASS}        if self.config.get('own') == 'two':\n            self.never()",
            f"{A}own=two",
            "",
            {f"{A}own": "activations"},
        ),
    ],
)
def test_an_update_of_the_projects_own_that_runs_the_model_again(
    tmp_path: Path, update: str, more: str, main: str, said: dict[str, str]
) -> None:
    with_actor(tmp_path, update, main=main)
    assert deciding(read(tmp_path, f"{RL} {more}")) == said


@pytest.mark.parametrize(("main", "said"), [("", {}), ("{Role.Tutor: TutorWorker}", {"tutor": "model"})])
def test_workers_of_the_projects_own_hold_a_model(tmp_path: Path, main: str, said: dict[str, str]) -> None:
    trainer = """class T:
    def __init__(self):
        self.has_tutor = Role.Tutor in self.mapping
    def init_workers(self):
        self.resource_pool_to_cls[pool]["ref"] = 1
        if self.has_tutor:
            self.resource_pool_to_cls[pool]["tutor"] = 1
"""
    with_actor(tmp_path, PASS, main=main, trainer=trainer)
    assert deciding(read(tmp_path, RL)) == said


@pytest.mark.parametrize(
    ("update", "workers", "entropy"),
    [
        (PASS, "", "unscored"),
        (PASS, "self.actor.compute_log_prob(data=data, calculate_entropy=True)", "none"),
        (PASS.replace("=entropy", "=True"), "", "metric"),
    ],
)
def test_an_entropy_of_the_projects_own(tmp_path: Path, update: str, workers: str, entropy: str) -> None:
    with_actor(tmp_path, update, workers=workers)
    text = OLD.replace("    use_kl_loss: true\n    kl_loss_type: low_var_kl\n", "")
    text = text.replace("param_offload", "offload_params").replace("optimizer_offload", "offload_optimizer")
    assert read(tmp_path, text, "new.yaml").job.entropy == entropy


@pytest.mark.parametrize("name", ["run_qwen2.5-vl-7b.sh", "run.sh"])
def test_a_model_that_sees_is_asked_for_where_a_file_tells(tmp_path: Path, name: str) -> None:
    """By its name or its settings; and images of one that an option names are asked for."""
    rests = "" if "vl" in name else f"{A}freeze_vision_tower=True"
    (tmp_path / name).write_text(f"{RL.replace('Qwen/Qwen2.5-0.5B', 'YOUR_MODEL')} {rests}\n")
    found = check_file(str(tmp_path / name), {"gpu": "h100-80gb"})
    assert found.hint.startswith("add --model Qwen/Qwen2.5-VL-7B-Instruct --set images.per_example=1 ")
    found = check_file(str(tmp_path / name), {"gpu": "h100-80gb", "model": "Qwen/Qwen2.5-VL-7B-Instruct"})
    assert "at most" in found.text


def test_the_defaults_of_an_easy_r1_beside_are_its_own(tmp_path: Path) -> None:
    """Rows padded until 0.2, a share of the card, an estimator: where the file says nothing of them."""
    text = OLD.replace("    use_kl_loss: true\n    kl_loss_type: low_var_kl\n", "").replace(
        "adv_estimator: grpo", "kl_coef: 0"
    )
    text = text.replace("param_offload", "offload_params").replace("optimizer_offload", "offload_optimizer")
    usual = read(tmp_path, text, "new.yaml").job
    for name, code in {
        "workers/actor": "class ActorConfig:\n    padding_free: bool = False\n    model: M = field()\n",
        "workers/rollout": "class RolloutConfig:\n    gpu_memory_utilization: float = 0.5\n    seed: int = 1\n",
        "trainer": "class AlgorithmConfig:\n    adv_estimator: str = 'rloo'\n",
    }.items():
        (tmp_path / "verl" / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "verl" / name / "config.py").write_text(code)
    own = read(tmp_path, text, "new.yaml").job
    assert usual.rollout is not None
    assert own.rollout is not None
    assert (usual.padded, usual.rollout.gpu_memory_utilization, usual.method) == (False, 0.6, "grpo")
    assert (own.padded, own.rollout.gpu_memory_utilization, own.method) == (True, 0.5, "rloo")


def test_an_easy_r1_that_searches_joins_its_turns(tmp_path: Path) -> None:
    text = OLD.replace("data: {", "retriever: {max_turns: 3}\ndata: {max_start_length: 1024, max_obs_length: 512, ")
    job = read(tmp_path, text, "config.yaml").job
    assert (job.sequence_length, job.completion_length) == (1024 + 512, 512)


def test_a_copy_of_openrlhf_evaluates_by_a_batch_of_its_own(tmp_path: Path) -> None:
    sft = "deepspeed --module openrlhf.cli.train_sft --pretrain Qwen/Qwen2.5-0.5B --max_len 512 --bf16 --flash_attn"
    found = read(tmp_path, f"{sft} --micro_train_batch_size 1 --micro_eval_batch_size 4", num_gpus=8)
    assert (found.job.batch_size, found.job.eval_batch_size, deciding(found)) == (1, 4, {})


FORWARD = """class Actor:
    def forward(self, sequences):
        output = self.model(sequences)
        return log_probs_from_logits(output["logits"], sequences)
"""
STEP = """class ActorPPOTrainer:
    def training_step(self, experience):
        action_log_probs, output = self.actor(experience.sequences, return_output=True)
        self.strategy.backward(loss, self.actor, self.actor_optim)
        if self.pretrain_dataloader is not None:
            output = self.actor(inputs, return_output=True)
"""
GROUPS = "def train(args):\n    critic_model = PPORayActorGroup(1)\n    ref_model = PPORayActorGroup(1)\n"


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("models/actor.py", FORWARD, {}),
        ("models/actor.py", f"{FORWARD}        p = F.softmax(output['logits'], -1)\n".replace("return", "x ="), "loss"),
        ("trainer/ray/ppo_actor.py", STEP, {}),
        ("trainer/ray/ppo_actor.py", STEP.replace("self.strategy.backward", "self.note"), "activations"),
        ("cli/train_ppo_ray.py", GROUPS, {}),
        ("cli/train_ppo_ray.py", f"{GROUPS}    teacher_model = PPORayActorGroup(1)\n", "model"),
        ("cli/train_ppo_ray.py", f"{GROUPS}    if args.teacher:\n        teacher_model = PPORayActorGroup(1)\n", {}),
    ],
)
def test_a_copy_of_openrlhf_that_does_more(tmp_path: Path, name: str, code: str, told: str) -> None:
    """Its logits, its passes before a backward, its groups of workers; what an option asks for that is not given, and
    what the original does too, is nobody's."""
    place = tmp_path / "OpenRLHF" / "openrlhf" / name
    place.parent.mkdir(parents=True)
    place.write_text(code)
    assert set(deciding(read(tmp_path, RLHF)).values()) == set([told] if told else [])


GRPO = """class GRPOTrainer(Trainer):
    def _get_per_token_logps(self, model, ids):
        logits = model(input_ids=ids).logits
        logits = logits / self.temperature
        return selective_log_softmax(logits, ids)

    def _compute_loss(self, model, inputs):
        per_token_logps = self._get_per_token_logps(model, inputs["ids"])
"""
GRPO_PROGRAM = """from trl import GRPOConfig, GRPOTrainer
args = GRPOConfig(output_dir="x", per_device_train_batch_size=8, num_generations=8, max_prompt_length=512, bf16=True)
GRPOTrainer(model="Qwen/Qwen2.5-0.5B", args=args, reward_funcs=len, train_dataset=rows).train()
"""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("", "", {}),
        ("selective_log_softmax(logits", "selective_log_softmax(logits.float()", "loss"),
        ("        return", "        entropy = my_entropy(logits)\n        return", "loss"),
        ("        per_token", "        other = model(input_ids=0)\n        per_token", "activations"),
    ],
)
def test_a_copy_of_trl_that_does_more(tmp_path: Path, old: str, new: str, told: str) -> None:
    place = tmp_path / "trl" / "trainer" / "grpo_trainer.py"
    place.parent.mkdir(parents=True)
    place.write_text(GRPO.replace(old, new) if old else GRPO)
    found = read(tmp_path, GRPO_PROGRAM, "train.py", num_gpus=8)
    assert {each.decides for each in found.unread if each.key == "trl"} == set([told] if told else [])


SCORES = """class Actor:
    @torch.no_grad()
    def compute_log_prob(self, data):
        return [self._forward_micro_batch(each) for each in data]
"""


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (SCORES, set()),
        (SCORES.replace("    @torch.no_grad()\n", ""), {"activations"}),
        (SCORES.replace("    @torch.no_grad()\n", "").replace(
            "return [", "with torch.no_grad():\n            return ["), set()),
    ],
)  # fmt: skip
def test_a_copy_of_verl_that_scores_with_a_graph(tmp_path: Path, code: str, told: set[str]) -> None:
    place = tmp_path / "verl" / "workers" / "actor" / "dp_actor.py"
    place.parent.mkdir(parents=True)
    place.write_text(code)
    assert set(deciding(read(tmp_path, RL)).values()) == told


def test_names_of_a_file_s_own_whose_values_verl_s_settings_have_are_not_asked_about(tmp_path: Path) -> None:
    text = f"{RL} lora.target_modules=all-linear {M}target_modules=all-linear agent_proxy.reward_norm.method=mean_std"
    assert not [each for each in read(tmp_path, text).unread if each.decides]
    other = read(tmp_path, f"{RL} teacher.path=Qwen/Qwen2.5-0.5B")
    assert [each.key for each in other.unread if each.decides] == ["teacher.path"]


def test_search_r1_s_padded_rows_are_no_more_than_its_completions(tmp_path: Path) -> None:
    """A budget counts tokens without the padding that rows keep: a rank's completions may all stand in one."""
    dynamic = f"{A}use_dynamic_bsz=true {A}ppo_max_token_len_per_gpu=4096 {M}use_remove_padding=False"
    dynamic += f" {R}log_prob_max_token_len_per_gpu=4096"
    search = f"max_turns=2 data.max_start_length=256 data.train_batch_size=128 {R}n_agent=8"
    found = read(tmp_path, f"{RL} {dynamic} {search}")
    assert {each.asks for each in found.unread} == {"batch_size", "logprob_token_budget"}
    told = read(tmp_path, f"{RL} {dynamic} {search}", batch_size=4, logprob_token_budget=4096)
    assert (told.job.batch_size, told.job.logprob_token_budget, told.unread) == (4, 4096, ())


@pytest.mark.parametrize("place", ['"configs"', 'str(Path(__file__).parent / "configs")', "str(CONFIGS)"])
def test_a_program_s_own_config_has_what_its_command_says_nothing_of(tmp_path: Path, place: str) -> None:
    """A command with no setting of verl's groups: what trains is the config of the program's ``@hydra.main``."""
    (tmp_path / "README.md").write_text("")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/mine.yaml").write_text(
        "defaults: [ppo_trainer, _self_]\nalgorithm: {adv_estimator: grpo}\n"
        "data: {max_prompt_length: 512, max_response_length: 512}\njudge: {model_path: Qwen/Qwen2.5-7B}\n"
        "actor_rollout_ref:\n  model: {path: Qwen/Qwen2.5-0.5B}\n  actor: {ppo_micro_batch_size_per_gpu: 4}\n"
    )
    named = 'CONFIGS = Path(__file__).resolve().parents[0] / "configs"\n'
    (tmp_path / "start.py").write_text(
        f'{named}@hydra.main(version_base="1.1", config_path={place}, config_name="mine")\n'
    )
    found = read(tmp_path, "python3 start.py trainer.experiment_name=actor_rollout_ref.actor.x", num_gpus=8)
    assert (found.job.model, found.job.method, found.job.batch_size) == ("Qwen/Qwen2.5-0.5B", "grpo", 4)
    assert deciding(found) == {"judge.model_path": "model"}
    changed = read(tmp_path, f"python3 start.py {A}ppo_micro_batch_size_per_gpu=2 trainer.nnodes=1", num_gpus=8)
    assert changed.job.batch_size == 2


@pytest.mark.parametrize(
    ("own", "decides"),
    [
        ("+e5_model_path=intfloat/e5-base-v2", {"e5_model_path": "model"}),  # of the fork's; the shell has no plus
        ("E5_MODEL_PATH=intfloat/e5-base-v2", {}),
        (f"{A}optim.optim_name=SAM", {f"{A}optim.optim_name": "optimizer"}),
        (f"{A}optim.own_scheduler=cosine", {}),
    ],
)
def test_a_model_at_the_top_and_an_optimizer_s_name_decide(tmp_path: Path, own: str, decides: dict[str, str]) -> None:
    assert deciding(read(tmp_path, f"{RL} {own}")) == decides


def test_settings_of_two_of_verl_s_trainers_are_asked_about(tmp_path: Path) -> None:
    assert deciding(read(tmp_path, RL)) == {}
    assert (
        deciding(read(tmp_path, f"{RL} model.partial_pretrain=Qwen/Qwen2.5-0.5B"))["model.partial_pretrain"] == "method"
    )

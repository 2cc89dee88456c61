"""slime: Megatron's arguments with those of rollouts, in the script that starts ``train.py`` over Ray.

The model's arguments stand in a script that is sourced (``models/qwen3-4B.sh``); where that is not there, the name of
``--hf-checkpoint`` is asked for among the presets. Source: THUDM/slime@2026-08-21 slime/utils/arguments.py, train.py,
backends/megatron_utils/arguments.py."""

import re
from collections.abc import Sequence
from dataclasses import replace

from memplan.errors import InvalidJob
from memplan.frameworks.asking import MODEL
from memplan.frameworks.base import Draft, Framework, Keys
from memplan.frameworks.common.generating import SGLANG, put, put_bucket, put_engine, read_draft, read_fields, warn_felt
from memplan.frameworks.common.image_bounds import IMAGES
from memplan.frameworks.files.documents import Document, Settings, is_template, words
from memplan.frameworks.megatron import reader as megatron
from memplan.frameworks.megatron.keys import DEFAULTS
from memplan.frameworks.megatron.model import SHAPE
from memplan.frameworks.own_words.names import OTHERS, bound_images
from memplan.frameworks.shell.reader import Word, options_of
from memplan.frameworks.slime.program import started, starts
from memplan.tables.texts import parts_of

_PARTS = parts_of(__file__)

PROGRAM = re.compile(r"(?:.*/)?train(?:_async)?\.py")
MARK = "actor_num_gpus_per_node"
ENDS = ("|", ";", "&&", "&")
REDIRECTS = (">", ">>", "<", "2>", "&>")
QUANTISED = re.compile(r"(?i)[-_](fp8|int4|int8|awq|gptq|nvfp4|mxfp4|w\da\d+)(?![a-z\d])")
"""In the name of a checkpoint that the engine serves as it is, while the trainer has weights of its own."""
BOUNDED = words("rollout_max_prompt_len rollout_max_context_len")
"""What says how long a sample is with its prompt."""
_OWN = re.compile(r"slime_plugins\.models\.(qwen3_5|qwen3_next|gpt_oss)\b")
OF_GPT_OSS = words(
    """spec quick_geglu glu_linear_offset softmax_type window_attn_skip_freq window_size activation_func_clamp_value"""
)
OF_MIXED = ("spec", "attention_output_gate", "use_gated_attention", "sequence_parallel")
DIVIDING = ("tensor_model_parallel_size", "context_parallel_size")
WHOLE = "log-probabilities are counted at once, which takes more"
OWN = re.compile(
    r"(rollout|sglang|vllm|eval|wandb|tb|over|buffer|agent|rm|reward|n_samples|num_rollout|num_epoch|prompt"
    r"|input|label|metadata|apply|tool|dynamic_sampling|group_rm|partial|balance|start_rollout|debug|update_weight"
    r"|num_critic|opd|tis|use_tis|eps_clip|kl|normalize|ref|save|load|router|health|use_health|ci|dump|multimodal"
    r"|loss_mask|mask_\w+|http|slime|train_memory|calculate|megatron_to_hf|qkv_format|use_rollout|get_mismatch)(_\w+)?"
    r"|custom_\w+|critic_(load|save|lr\w*|num_gpus_per_node|num_nodes)|data_source_path|data_pad_size_multiplier"
    r"|disable_(compute_advantages_and_returns|grpo_std_normalization|rewards_normalization|rollout_\w+|wandb_\w+)"
    r"|keep_old_actor"
)
"""Beginnings and names of slime's own arguments that memory does not feel, beside those that are read."""
PADDED = 128
"""Tokens that a micro-batch is filled up to a multiple of, by default; more are worth telling."""
HARMLESS = words(_PARTS["harmless"])


ESTIMATORS = words("grpo gspo cispo reinforce_plus_plus reinforce_plus_plus_baseline on_policy_distillation")
"""Of ``advantage_estimator``, without a critic (utils/arguments.py)."""


def recognise(document: Document) -> tuple[str, ...]:
    """``train.py`` with the number of the actor's GPUs."""
    text = document.text
    if starts(document):
        return (MARK,)
    own = "--actor-num-gpus-per-node" in text and ("--rollout-" in text or "--hf-checkpoint" in text)
    return ("--actor-num-gpus-per-node",) if document.form == "shell" and own else ()


def read(document: Document, draft: Draft) -> None:
    """The training of a script, or of a program that puts its arguments together."""
    if document.form == "python":
        _read_program(document, draft)
        return
    for command in document.commands:
        place = next((at for at, word in enumerate(command.words) if PROGRAM.fullmatch(word.text)), -1)
        values, lines, _ = options_of(_arguments(command.words[place + 1 :]))
        if place >= 0 and MARK in values:
            settings = Settings(document.path, values, lines)
            _read(Keys(draft, _as_megatron(settings), FRAMEWORK, DEFAULTS), settings)
            return
    raise InvalidJob(f"{document.path}: no train.py of slime's with its arguments", "name the script that starts one")


def _read_program(document: Document, draft: Draft) -> None:
    found = started(document)
    values, lines, _ = options_of(found.words)
    if MARK not in values:
        raise InvalidJob(f"{document.path}: no number of GPUs among its arguments", "name the script that starts one")
    if found.model and "num_layers" not in values:  # its script says the same in Megatron's words
        values["hf_checkpoint"] = values.get("hf_checkpoint") or found.model
    settings = Settings(document.path, values, lines)
    if found.lost:
        draft.warn(MARK, settings.where(MARK), f"arguments of {found.lost[:80]} are not known", "parallelism")
    _read(Keys(draft, _as_megatron(settings), FRAMEWORK, DEFAULTS), settings)


def _arguments(command: Sequence[Word]) -> list[Word]:
    """Up to the next command, without files that it writes to."""
    end = next((at for at, word in enumerate(command) if word.text in ENDS), len(command))
    files = {at + 1 for at, word in enumerate(command) if word.text in REDIRECTS}
    dropped = (*REDIRECTS, "2>&1")
    return [word for at, word in enumerate(command[:end]) if at not in files and word.text not in dropped]


def _as_megatron(own: Settings) -> Settings:
    """What slime sets of Megatron's arguments itself, beside a micro-batch of tokens."""
    values = dict(own.values)
    values |= {"bf16": not values.get("fp16"), "use_distributed_optimizer": True, "micro_batch_size": 1}
    longest, budget = _tokens(own)
    values |= {"no_create_attention_mask_in_dataloader": True, "seq_length": longest or budget or None}
    values.setdefault("hidden_dropout", 0.0)
    if own.values.get("micro_batch_size") and not own.values.get("use_dynamic_batch_size"):
        values["micro_batch_size"] = own.values["micro_batch_size"]
    return Settings(own.path, {key: value for key, value in values.items() if value is not None}, own.lines)


def _tokens(own: Settings) -> tuple[int, int]:
    """(tokens of the longest sample, of a micro-batch: the budget of a GPU times those that share a sequence)."""
    said = own.values
    whole = {key: value for key, value in said.items() if isinstance(value, int) and not isinstance(value, bool)}
    longest = whole.get("rollout_max_response_len", 0) + whole.get("rollout_max_prompt_len", 0)
    longest = whole.get("rollout_max_context_len", longest) or whole.get("seq_length", 0)
    budget = whole.get("max_tokens_per_gpu", 0) * whole.get("context_parallel_size", 1)
    return longest, budget if said.get("use_dynamic_batch_size") else 0


def _read(keys: Keys, own: Settings) -> None:
    """Rollouts, reference and engine of slime's, then what is Megatron's."""
    draft, path = keys.draft, own.path
    estimator = keys.text("advantage_estimator") or "grpo"
    supervised = (keys.text("loss_type") or "policy_loss") == "sft_loss"
    method = "sft" if supervised else "ppo" if estimator == "ppo" else "grpo"  # the others have no critic
    if method == "grpo" and estimator not in ESTIMATORS:
        where = keys.settings.where("advantage_estimator")
        draft.remarks.append(f"{where}: {estimator[:30]} is counted as grpo: the file describes no critic")
    keys.put("method", method, "loss_type", "advantage_estimator")
    _model(keys)
    if not keys.has("seq_length") and "sequence_length" not in draft.given:
        draft.ask("sequence_length", own.where(), "neither the rollout's lengths nor a budget of tokens are numbers")
    launcher = {"nproc_per_node": keys.get(MARK), "nnodes": keys.get("actor_num_nodes") or 1}
    if not all(isinstance(value, int) and value > 0 for value in launcher.values()):
        draft.ask("num_gpus", own.where(MARK), f"{str(launcher['nproc_per_node'])[:40]} GPUs of a node")
        launcher = {}
    elif not supervised and not keys.flag("colocate"):
        draft.trains_on(launcher["nproc_per_node"] * launcher["nnodes"], path)
    if not supervised:
        _rollouts(keys, path)
    backend = keys.text("train_backend") or "megatron"
    if backend != "megatron":
        keys.warn("train_backend", f"slime's {backend[:20]} backend is counted as Megatron", "parallelism")
    if (keys.number("log_probs_chunk_size") or -1) > 0:
        keys.draft.bound("log_probs_chunk_size", own.where("log_probs_chunk_size"), WHOLE, "loss")
    if method == "ppo":
        _critic(keys)
    if keys.flag("use_opd"):
        _teacher(keys)
    if keys.flag("recompute_loss_function") and not supervised:
        keys.put("recompute_loss", True, "recompute_loss_function")
    why = "a model of the project's own code is counted as the arguments describe it"
    keys.warn("custom_model_provider_path", why, "model")
    keys.warn("custom_loss_function_path", "a loss of the project's own code is counted as slime's", "loss")
    if (keys.whole("data_pad_size_multiplier") or 0) > PADDED:
        keys.warn("data_pad_size_multiplier", "what fills a micro-batch up is not counted", "lengths")
    keys.skip(*HARMLESS, *(key for key in keys.settings.values if OWN.fullmatch(key)))
    megatron.read_arguments(keys, launcher)
    _budget(keys, own)


def _teacher(keys: Keys) -> None:
    """One that a server elsewhere runs, or whose weights are swapped into the policy's model as the reference's are
    (utils/arguments.py: --opd-type; backends/megatron_utils/actor.py: load_other_checkpoint)."""
    served = keys.text("opd_type") == "sglang"
    if served:
        keys.remark("a server started apart runs the teacher", "opd_type")
    elif keys.text("opd_type") == "megatron" and keys.draft.values.get("reference") == "none":
        keys.draft.values.pop("reference")
        keys.put("reference", "offloaded", "opd_teacher_load", "opd_type")
    else:
        keys.warn("use_opd", "the model that teaches is not counted", "model")


def _critic(keys: Keys) -> None:
    """A value model of the policy's shape: to 0.2 on GPUs of its own, since in a process that the policy's leaves the
    card to (ray/placement_group.py, utils/arguments.py: use_critic sets offload_train)."""
    keys.warn("megatron_config_path", "the critic is counted with the policy's arguments", "parallelism")
    if not keys.flag("colocate"):
        keys.bound("advantage_estimator", "what the critic holds is counted while the policy trains", "method")


def _budget(keys: Keys, own: Settings) -> None:
    """A micro-batch of tokens, of the update and of the scores; a longer sample is one by itself."""
    longest, budget = _tokens(own)
    bounds = BOUNDED | ({"seq_length"} if keys.draft.values.get("method") == "sft" else set())  # which rollouts pass by
    if longest and not bounds & set(own.values) and "sequence_length" not in keys.draft.given:
        if not budget:
            keys.draft.ask("sequence_length", own.path, "nothing bounds prompts, and a micro-batch is of whole samples")
        taken = f"no longer than the {budget}" if longest < budget else f"as long as their completions, {longest}"
        why = f"nothing bounds prompts: samples are taken to be {taken} tokens"
        keys.draft.remarks.append(f"{own.path}: {why}; add --rollout-max-prompt-len or --sequence-length")
    if not budget or "batch_size" in keys.draft.given:
        return
    longest = max(longest, int(keys.draft.options.get("sequence_length") or 0))
    keys.put("token_budget", max(longest, budget), "max_tokens_per_gpu")
    said = own.values.get("log_probs_max_tokens_per_gpu")
    each = own.values.get("max_tokens_per_gpu") or 0
    if isinstance(said, int) and said > each:
        keys.put("logprob_token_budget", max(longest, said * budget // each), "log_probs_max_tokens_per_gpu")


def _rollouts(keys: Keys, path: str) -> None:
    """Where the reference is, what is done with the entropy, and what generates."""
    kept = bool(keys.flag("use_kl_loss")) or bool(keys.number("kl_coef"))
    keys.put("reference", "offloaded" if kept else "none", "use_kl_loss", "kl_coef")
    if keys.number("entropy_coef"):
        keys.put("entropy", "loss", "entropy_coef")
    _engine(keys)


def _engine(keys: Keys) -> None:
    """SGLang on the trainer's cards, which then waits on the host, or on cards of its own."""
    beside = bool(keys.flag("colocate"))
    put_engine(keys, "sglang", "colocate" if beside else "rollout_num_gpus", separate=not beside, own=True)
    read_fields(keys, {"rollout_num_gpus_per_engine": "tensor_parallel"})
    quantised = QUANTISED.search(str(keys.get("hf_checkpoint") or ""))
    if quantised and quantised[1].lower() == "fp8":
        put(keys, "quantization", "fp8", "hf_checkpoint")
    elif quantised:
        keys.warn("hf_checkpoint", f"weights of the engine in {quantised[1]} are counted as bf16", "engine")
    read_fields(keys, SGLANG, "sglang_")
    read_draft(keys, "sglang_")
    warn_felt(keys, "sglang_")
    put_bucket(keys, "update_weight_buffer_size")
    if not beside:
        if is_template(keys.get("rollout_num_gpus")):  # how many engines there are no card of theirs feels
            put(keys, "num_gpus", keys.whole("rollout_num_gpus_per_engine", 1), "rollout_num_gpus")
        elif keys.has("rollout_num_gpus"):
            put(keys, "num_gpus", keys.whole("rollout_num_gpus"), "rollout_num_gpus")
        return
    stays = keys.settings.values.get("offload_train") is False or keys.flag("no_offload_train")
    if stays and keys.draft.values["method"] != "ppo":  # beside a critic it is offloaded whatever is said
        keys.put("trainer_offload", [], "no_offload_train")
    if keys.settings.values.get("offload_rollout") is False or keys.flag("no_offload_rollout"):
        put(keys, "sleep", "none", "no_offload_rollout")


def _by_name(keys: Keys, *others: str) -> None:
    """The checkpoint's model, by its name, in place of the arguments, which describe a part of it."""
    left = {*others, *SHAPE} - {"num_experts"}
    values = {key: value for key, value in keys.settings.values.items() if key not in left}
    if is_template(values.get("hf_checkpoint")):
        values["hf_checkpoint"] = f"/{_name(keys)}"
    keys.settings = replace(keys.settings, values=values)
    keys.skip("num_experts")


def _name(keys: Keys) -> str:
    found = str(keys.settings.values.get("hf_checkpoint", "")).rstrip("/").rpartition("/")[2]
    return "" if is_template(found) else found


def _mixed(keys: Keys) -> None:
    """Qwen3-Next and Qwen3.5: slime takes their delta nets from Hugging Face, whole on each rank and over whole
    sequences (slime_plugins/models/hf_attention.py): where ranks divide the other layers, they are counted as dividing
    none."""
    said = keys.settings.values
    keys.remark("delta nets are counted as Megatron's own", "spec")
    for degree in (each for each in DIVIDING if said.get(each, 1) not in (1, "1")):
        why = f"delta nets are whole on each of {said[degree]} GPUs, and so all layers are counted"
        keys.bound(degree, why, "parallelism")
    _by_name(keys, *OF_MIXED, *DIVIDING)


def _model(keys: Keys) -> None:
    """By its own arguments, else by the name of its checkpoint; so too layers of slime's own, and a model that sees."""
    given, own = "model" in keys.draft.given, _OWN.search(str(keys.settings.values.get("spec")))
    if own and _name(keys) and own[1] != "gpt_oss":
        _mixed(keys)
    elif own and _name(keys):
        _by_name(keys, *OF_GPT_OSS)
    bound_images(keys, "hf_checkpoint", megatron=True)
    if IMAGES in keys.draft.finishers and not given:
        _by_name(keys)
    if given or keys.has("num_layers"):
        return
    if not keys.has("hf_checkpoint") or is_template(keys.get("hf_checkpoint")):
        raise keys.settings.error("hf_checkpoint", "the model's arguments are not here", MODEL)
    keys.copy("model", "hf_checkpoint")


FRAMEWORK = Framework(
    "slime", "slime", "0.3", recognise, read, trainer="slime", extends=(*OTHERS, "megatron", "mindspeed", "python")
)

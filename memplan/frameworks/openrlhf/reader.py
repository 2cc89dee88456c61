"""OpenRLHF: ``openrlhf.cli.train_*`` in a command or a script, with the dotted names of 0.11 or the flat ones before.

Everything trains under DeepSpeed. Defaults are those of the program that is started.
Source: OpenRLHF 0.11 cli/train_sft.py, train_dpo.py, train_rm.py, train_ppo_ray.py."""

import re

from memplan.errors import InvalidJob
from memplan.frameworks.base import FILE, Draft, Framework, Keys, Origin
from memplan.frameworks.commands import processes
from memplan.frameworks.commands.launch import launch_of
from memplan.frameworks.common.fsdp_keys import put_inner
from memplan.frameworks.common.generating import put
from memplan.frameworks.files.documents import Document, Settings, is_template
from memplan.frameworks.openrlhf import keys as table
from memplan.frameworks.openrlhf.attention import read_attention, read_old_head
from memplan.frameworks.openrlhf.keys import PROGRAMS
from memplan.frameworks.openrlhf.rollout import critic_apart, read_engine, read_scoring
from memplan.frameworks.openrlhf.write import write
from memplan.frameworks.own_words.names import OTHERS, bound_images, lora_targets
from memplan.frameworks.project.copies import OPENRLHF
from memplan.frameworks.project.own_copies import warn_own_code
from memplan.frameworks.shell.reader import Command, options_of
from memplan.units import ceil_div

_PROGRAM = re.compile(r"openrlhf[./]cli[./]train_(\w+)")
_EXAMPLE = re.compile(r"(?:^|/)train_(\w+)\.py$")
"""Its programs before 0.4, of the folder ``examples``, and what is made of them."""
_ADDED = re.compile(r"(?:^|/)((?:(?<=cli/)\w+/)?\w+)\.py$")
"""What a project adds to a copy: under any name, or in a folder of its own."""
_ITS_OWN = ("--micro_train_batch_size", "--zero_stage")


def recognise(document: Document) -> tuple[str, ...]:
    """Its programs in a script, or others with options that are its alone."""
    if document.form != "shell":
        return ()
    if _PROGRAM.search(document.text):
        return ("openrlhf.cli",)
    old = all(option in document.text for option in _ITS_OWN)
    return _ITS_OWN if old and any(_program(command)[0] for command in document.commands) else ()


def read(document: Document, draft: Draft) -> None:
    """The first training that the script starts."""
    found = [(command, *_program(command)) for command in document.commands]
    starts = [each for each in found if each[1] and len(each[0].words) > each[2] + 2]
    if not starts:
        raise InvalidJob(
            f"{document.path}: no training of OpenRLHF's with options in it", "name a script that starts one"
        )
    command, name, place = starts[0]
    alone = name == "ppo"  # to 0.7, without Ray: all models in each process, and the policy generates
    name = "ppo_ray" if alone else name
    if name not in PROGRAMS:
        name = _counted_as(name, f"{document.path}, line {command.line}", draft)
    values, lines, _ = options_of(command.words[place + 1 :])
    spelled = {_new_name(key, name): key for key in table.OLD_NAMES} if table.OLD_NAMES.keys() & values.keys() else {}
    values = {_new_name(key, name): value for key, value in values.items()}
    lines = {_new_name(key, name): line for key, line in lines.items()}
    if alone:
        values |= {"train.colocate_all": True, "vllm.num_engines": 0}
    settings = Settings(document.path, values, lines, spelled=spelled)
    older = (
        table.OLDER if name == "ppo_ray" and table.OLDER.keys() & values.keys() and "data.max_len" not in values else {}
    )
    keys = Keys(draft, settings, FRAMEWORK, table.SHARED | PROGRAMS[name] | older)
    if name != "ppo_ray" or alone:
        draft.facts["openrlhf alone"] = True
        _put_processes([command, *(each for each, _, _ in found)], document.path, draft)
    read_arguments(keys, name)


def _counted_as(name: str, where: str, draft: Draft) -> str:
    """The program of ``--method``, or else the one that is named alike, in the place of one of the project's own with
    OpenRLHF's options, which is said."""
    words = re.split(r"[_/]", name)
    like = next((each for each in ("dpo", "kto", "rm") if each in words), "dpo" if name.endswith("po") else "sft")
    meant = next((each for each, row in PROGRAMS.items() if row["method"] == draft.options.get("method")), like)
    why = f"{name} is counted as OpenRLHF's train_{meant}"
    draft.warn("program", where, why, "method", "add --without program, if it takes no more")
    return meant


def _new_name(key: str, program: str) -> str:
    """The dotted name of an option; of PPO's programs the model is the actor."""
    key = table.OLD_NAMES.get(key, f"vllm.{key[5:]}" if key.startswith("vllm_") else key)
    return f"actor.{key.removeprefix('model.')}" if program == "ppo_ray" and key in table.OF_THE_ACTOR else key


def _program(command: Command) -> tuple[str, int]:
    """(sft, dpo, …, the place of its word), or the name of another with OpenRLHF's options, or nothing."""
    texts = command.texts
    own = all(option in texts for option in _ITS_OWN)
    for place, text in enumerate(texts):
        path = f"{text.replace('.', '/')}.py" if own and texts[place - 1] in ("--module", "-m") else text
        match = _PROGRAM.search(text) or _EXAMPLE.search(path)
        added = _ADDED.search(path) if own else None
        if match and (added is None or "/" not in added[1]):
            name = match[1]
            return name if name in (*PROGRAMS, "ppo") else f"train_{name}", place
        if added:
            return added[1], place
    return "", 0


def _put_processes(commands: list[Command], path: str, draft: Draft) -> None:
    """GPUs of the launcher before the program, or of the one that is handed it: ``deepspeed --module $TRAIN``."""
    found = [launch_of(command, path) for command in commands if command.words]
    launch = next((each for each in found if each and each.launcher in ("deepspeed", "torchrun")), None)
    where = launch.where if launch else path
    processes.expect(draft, where, "OpenRLHF starts under DeepSpeed, and nothing says on how many GPUs")
    if launch:
        processes.put_gpus(launch, draft)


def read_arguments(keys: Keys, program: str) -> None:
    """The options of one program."""
    draft = keys.draft
    draft.put("trainer", "openrlhf", Origin(FILE, f"{keys.settings.path}: openrlhf.cli.train_{program}"))
    of = "actor." if program == "ppo_ray" else "model."
    keys.copy("model", f"{of}model_name_or_path")
    bound_images(keys, f"{of}model_name_or_path")
    _length(keys)
    gpus = _gpus(keys, program)
    method = _method(keys, program)
    _batch(keys, program, gpus)
    on = bool(keys.flag(f"{of}gradient_checkpointing_enable"))
    keys.put("gradient_checkpointing", "full" if on else "none", f"{of}gradient_checkpointing_enable")
    keys.put(
        "gradient_checkpointing_reentrant",
        bool(keys.flag(f"{of}gradient_checkpointing_reentrant")),
        f"{of}gradient_checkpointing_reentrant",
    )
    _deepspeed(keys)
    _adapter(keys)
    read_attention(keys)
    read_old_head(keys, method)
    keys.put_on("ds.use_liger_kernel", "kernels", "liger")
    if (keys.number(f"{of}aux_loss_coef") or 0) > 1e-8:
        keys.put("router_aux_loss", True, f"{of}aux_loss_coef")
    optim = "actor.optim" if program == "ppo_ray" else "optim"
    name = (keys.text(optim) or "adam").lower()
    keys.put("optimizer", "muon" if name == "muon" else "adamw", optim)
    _models(keys, method)
    for key, why in table.NOT_MODELLED.items():
        value = keys.get(key)
        if value is True or value not in (None, False, 1, keys.defaults.get(key)):
            keys.warn(key, why)
    others = {key for key in keys.settings.values if key.startswith(table.FAMILIES)}
    if program == "ppo_ray":
        known = {*keys.defaults, *table.HARMLESS, *table.OF_THE_MODEL, *others}
        named = {key.rpartition(".")[2]: key for key in keys.settings.values if key not in known}
        keys.skip(*warn_own_code(keys, OPENRLHF, named, "algo.advantage.estimator", ""))
    keys.close(table.HARMLESS | table.OF_THE_MODEL | others)


def _length(keys: Keys) -> None:
    """``max_len``; before 0.10 PPO's prompt and what is generated each have a bound."""
    names = ("prompt_max_len", "rollout.max_new_tokens")
    if names[0] not in keys.defaults:
        keys.copy("sequence_length", "data.max_len", "whole")
    elif "sequence_length" not in keys.draft.given:
        keys.put("sequence_length", sum(keys.whole(name) or 0 for name in names), *names)
    keys.skip("prompt_max_len", "data.max_len")


def _gpus(keys: Keys, program: str) -> int:
    if "openrlhf alone" not in keys.draft.facts:
        each, nodes = keys.whole("actor.num_gpus_per_node", 1), keys.whole("actor.num_nodes", 1)
        if not keys.flag("train.colocate_all") and isinstance(keys.settings.values.get("actor.num_gpus_per_node"), int):
            keys.draft.trains_on(each * nodes, keys.settings.path)
        keys.put("num_gpus", each * nodes, "actor.num_gpus_per_node")
        return each * nodes
    return int(keys.draft.now("num_gpus") or 1)


def _method(keys: Keys, program: str) -> str:
    method = str(PROGRAMS[program]["method"])
    if program == "dpo" and keys.flag("model.ipo_enable"):
        keys.put("method", "ipo", "model.ipo_enable")
        return "ipo"
    if program == "dpo" and keys.number("model.nll_loss_coef"):
        keys.put("sft_term", True, "model.nll_loss_coef")
    keys.skip("model.nll_loss_coef", "model.ipo_enable")
    if program == "kto":  # a pass of the samples and one of as many answers to other prompts, both with their graphs
        keys.put("pair_pass", "two-forward")
        keys.bound("desirable_loss_weight", "KTO is counted as DPO of as many pairs in two forwards, no less", "method")
    if program == "prm":
        keys.put("loss_head", "cross-entropy")
        keys.bound("placeholder_token", "the loss of a few tokens is counted as that of all, which takes more", "loss")
    if program != "ppo_ray":
        keys.put("method", method)
        return method
    word = (keys.text("algo.advantage.estimator") or "gae").lower()
    if word not in (*table.ESTIMATORS, "grpo"):
        keys.warn("algo.advantage.estimator", f"{word[:20]} is counted as grpo")
    method = table.ESTIMATORS.get(word, "grpo")
    if method == "ppo" and not keys.flag("train.colocate_all"):
        method = "grpo"
        critic_apart(keys)
    keys.put("method", method, "algo.advantage.estimator")
    return method


def _batch(keys: Keys, program: str, gpus: int) -> None:
    """Micro-batch, and accumulation of the global batch over all GPUs; those of a ring share micro-batch and budget."""
    ring = keys.whole("ds.ring_attn_size", 1)
    if ring > 1:
        keys.put("context_parallel", ring, "ds.ring_attn_size")
        gpus = max(1, gpus // ring)
    total, micro = keys.whole("train.batch_size", 1), keys.whole("train.micro_batch_size", 1)
    length = int(keys.draft.now("sequence_length") or 1)
    if keys.flag("train.dynamic_batch_enable"):
        tokens = (keys.whole("train.max_tokens_per_gpu") or ceil_div(length, ring)) * ring
        micro = max(1, ceil_div(tokens, length))
        keys.put("token_budget", max(tokens, length), "train.max_tokens_per_gpu")
    else:
        keys.put("batch_size", micro, "train.micro_batch_size")
    keys.copy("eval_batch_size", "micro_eval_batch_size", "whole")  # of copies that evaluate by another
    if program == "ppo_ray":
        read_scoring(keys, length, int(keys.draft.values.get("token_budget", micro * length)), gpus, ring)
    steps = max(1, ceil_div(total, micro * gpus))
    keys.put("gradient_accumulation_steps", steps, "train.batch_size")
    said = "rollout.n_samples_per_prompt"  # which memory does not feel
    group = 1 if is_template(keys.get(said)) else keys.whole(said, 1)
    if group > 1 and (micro * steps * gpus) % group == 0:
        put(keys, "group_size", group, "rollout.n_samples_per_prompt")


def _deepspeed(keys: Keys) -> None:
    """ZeRO's stage, the dtype, what is offloaded, the dtype of gradients."""
    keys.put("sharding", f"zero{keys.whole('ds.zero_stage')}", "ds.zero_stage")
    dtype = str(keys.get("ds.param_dtype")).lower()
    keys.put("dtype", {"bfloat16": "bf16", "float16": "fp16"}.get(dtype, dtype), "ds.param_dtype")
    keys.put_on("ds.adam_offload", "offload", ["optimizer"])
    zpg = keys.whole("ds.zpg", 1)
    if zpg > 1 and keys.whole("ds.zero_stage") == 3:
        put_inner(keys, "deepspeed", "zero_hpz_partition_size", zpg, "ds.zpg")
    if keys.flag("ds.overlap_comm"):
        put_inner(keys, "deepspeed", "overlap_comm", True, "ds.overlap_comm")
    if keys.has("ds.grad_accum_dtype"):
        put_inner(keys, "deepspeed", "grad_accum_dtype", keys.text("ds.grad_accum_dtype"), "ds.grad_accum_dtype")


def _adapter(keys: Keys) -> None:
    rank = keys.whole("ds.lora.rank") or 0
    names = keys.names("ds.lora.target_modules") or ("all-linear",)
    alpha, dropout = keys.number("ds.lora.alpha"), keys.number("ds.lora.dropout")
    if rank:
        lora = {"r": rank, "alpha": alpha, "dropout": dropout, "targets": lora_targets(names)}
        keys.put("lora", lora, "ds.lora.rank")
    keys.put_on("ds.load_in_4bit", "quantization", "nf4-double")


def _models(keys: Keys, method: str) -> None:
    """The reference, a critic of another shape, a reward model on the card, lengths of online methods."""
    offloaded = bool(keys.flag("ref.offload"))
    if keys.get("ref.model_name_or_path") != keys.draft.values.get("model"):
        keys.warn("ref.model_name_or_path", "the reference is counted in the policy's shape")
    keys.skip("ref.model_name_or_path")
    if method in ("dpo", "ipo"):
        keys.put("reference", "offloaded" if offloaded else "resident", "ref.offload")
    if method not in ("ppo", "grpo", "rloo"):
        return
    kl, together = keys.number("algo.kl.init_coef"), bool(keys.flag("train.colocate_all"))
    if kl and not (together or keys.flag("train.colocate_actor_ref")):
        kl = 0
        keys.remark("without train.colocate_actor_ref the reference stands on GPUs of its own, and is not counted")
    keys.put("reference", "none" if not kl else "offloaded" if offloaded else "resident", "algo.kl.init_coef")
    read_engine(keys, together)
    temperature = keys.number("rollout.temperature")
    if temperature and temperature != 1:
        keys.put("temperature", temperature, "rollout.temperature")
    if keys.get("rollout.max_new_tokens") is not None:
        keys.copy("completion_length", "rollout.max_new_tokens", "whole")
    coefficient = keys.number("actor.entropy_coef")
    if coefficient is not None:
        keys.put("entropy", "loss" if coefficient else "metric", "actor.entropy_coef")
    extra = []
    critic, reward = keys.text("critic.model_name_or_path"), keys.text("reward.model_name_or_path")
    if not critic and reward and not keys.has("reward.remote_url"):
        critic = reward.split(",")[0]  # train_ppo_ray.py: the critic's default
    if critic and method == "ppo":
        extra.append({"role": "critic", "model": critic})
    beside = together and not keys.flag("reward.offload")
    if reward and beside and not keys.has("reward.remote_url") and "," not in reward:
        extra.append({"role": "reward", "model": reward})
    elif reward:
        keys.remark("the reward model stands on GPUs of its own or on the host during the update, and is not counted")
    if extra:
        keys.put("extra_models", extra, "critic.model_name_or_path", "reward.model_name_or_path")


FRAMEWORK = Framework("openrlhf", "OpenRLHF", "0.11", recognise, read, write, generates=True, extends=OTHERS,
                      trainer="openrlhf", beside=lambda job: ("deepspeed",))  # fmt: skip

"""The version of transformers or of TRL that a file was written for: arguments that went, or what its script pins.

A file without any is taken in the newest. What loads in fp32 in one version loads as the checkpoint is in another."""

from collections.abc import Collection
from functools import partial

from memplan.frameworks.base import ASSUMED, DEFAULT, FILE, Framework, Origin
from memplan.frameworks.common.checkpoints import family_of
from memplan.frameworks.draft import UNTIL, Draft
from memplan.frameworks.files.documents import Settings, words
from memplan.frameworks.hugging_face.dialect_scripts import Script
from memplan.frameworks.project.pinned import pinned
from memplan.tables.families import SDPA_SINCE
from memplan.tables.trainer import version_key
from memplan.tables.trainers import TRAINERS, find_trainer

_GONE_IN_5 = (
    "overwrite_output_dir save_safetensors no_cuda fp16_backend half_precision_backend fp16_opt_level jit_mode_eval "
    "torchdynamo use_mps_device use_ipex sharded_ddp fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap past_index "
    "include_inputs_for_metrics include_tokens_per_second tpu_num_cores dispatch_batches split_batches "
    "per_gpu_train_batch_size push_to_hub_token"
)
SIGNS: tuple[tuple[str, str, str, str], ...] = (
    ("trl", "trainer", "max_seq_length packing dataset_text_field beta max_length max_prompt_length", "0.12"),
    ("trl", "trainer", "tokenizer", "0.15"),
    ("trl", "args", "evaluation_strategy", "0.11"),
    ("trl", "args", "max_seq_length", "0.19"),
    ("trl", "args", "use_liger", "0.17"),
    ("trl", "args", "max_prompt_length", "0.28"),
    ("trl", "args", "vllm_device vllm_dtype vllm_max_model_len", "0.17"),
    ("trl", "model", "torch_dtype", "0.22"),
    ("trl", "args", _GONE_IN_5, "0.26"),
    ("transformers", "args", "evaluation_strategy", "4.45"),
    ("transformers", "args", _GONE_IN_5, "4.57"),
    ("transformers", "model", "torch_dtype", "4.56"),
    ("transformers", "trainer", "tokenizer", "4.57"),
)
"""Arguments that went, or were written otherwise later: of whom, where they stand, and the last version that had them.

trl 0.9 to 1.16 trainer/*.py (tokenizer: processing_class since 0.12, gone in 0.16; max_seq_length: gone in 0.20;
use_liger and vllm_device: gone in 0.18; 0.26 is the last before transformers 5), transformers 4.41 (eval_strategy) to
5.0 training_args.py; ``torch_dtype`` is ``dtype`` since 4.56, and still taken: a pin is stronger than it."""
STILL_TAKEN = ("torch_dtype",)
SINCE = words("eval_strategy use_liger_kernel dtype eval_on_start")
"""Arguments that came after the versions that scripts pin."""


LAST, BORN = {"ppo": "1.12"}, {"grpo": "0.14"}
"""Methods that TRL gave up, and the last version that has them; and the first of one that came later than signs do."""


def told(package: str, where: str, names: Collection[str], method: str = "") -> tuple[str, str]:
    """(version, argument) of the oldest sign among these names; empty without one. One that is older than the method is
    an argument of the program's own."""
    born = version_key(BORN.get(method, "0") if package == "trl" else "0")
    found = [
        (version_key(version), version, name)
        for of, place, signs, version in SIGNS
        for name in signs.split()
        if of == package and place == where and name in names and version_key(version) >= born
    ]
    return min(found)[1:] if found else ("", "")


OF_SEVERAL = "arguments of several versions"
"""The fact that a program asks its library which of them it takes."""


AT_ONCE = "all answers to a prompt at once"
"""The fact that TRL 0.14's GRPO trains (trainer/grpo_trainer.py: num_return_sequences, repeat_interleave)."""


def nearest(version: str, method: str, where: str, draft: Draft) -> str:
    """The nearest version in which a method is modelled, which is said where it is another; GRPO's first is told apart
    by its rows alone."""
    first = find_trainer("trl").methods.first_versions.get(method, "")
    found = first if version and version_key(version) < version_key(first) else version
    if found != version and method == "grpo":
        draft.facts[AT_ONCE] = f"{where}: TRL {version}"
        draft.put("loss_head", "log-softmax", Origin(DEFAULT, f"TRL {version}"))
    elif found != version:
        draft.warn("trainer_version", where, f"TRL {version}'s {method} is counted as {found}'s", "loss")
    return found


def settle(settings: Settings, draft: Draft, package: str, script: Script | None = None, method: str = "") -> str:
    """Of a file's settings, where neither an option nor a program says it: the version, put into the draft."""
    draft.finishers["bitsandbytes"] = partial(beside_bitsandbytes, settings.path, package)
    draft.finishers["torch"] = partial(beside_torch, settings.path)
    if before := draft.now("trainer_version"):
        return str(before)
    several = draft.facts.get(OF_SEVERAL, ())
    said = {key: each for key, each in settings.values.items() if each is not None and key not in several}
    version, name = told(package, "args", said, method)
    why = f"{settings.where(name)}: {name} was there until {package} {version}" if version else ""
    pin = script.version if script and package == "transformers" and not said.keys() & SINCE else ""
    least = pinned(settings.path, f"{package}>=")[0]  # a script's copy in a project of its own may ask for a later one
    if pin and version_key(pin) >= version_key(least) and (not version or version_key(pin) < version_key(version)):
        version, why = pin, f"{script.title if script else ''} pins transformers {pin}"
    mine, whose = pinned(settings.path, package)
    if mine and (not version or version_key(mine) < version_key(version) or version == pin):
        version, why = mine, f"{whose} pins {package} {mine}"
    version, last = nearest(version, method, settings.path, draft), LAST.get(method, "") if package == "trl" else ""
    if last and (not version or version_key(last) < version_key(version)):
        version, why = last, f"{settings.path}: TRL has no {method} after {last}"
    if version:
        draft.of_version(version, why)
    return version


SDPA_ON = (2, 1, 1)
"""The PyTorch from which on transformers takes SDPA (4.36 to 4.5x utils/import_utils.py: is_torch_sdpa_available)."""


FUSED_ON = (2, 8)
"""The PyTorch from which on the Trainer's AdamW is the fused one (transformers 4.54 to 5.24 training_args.py:
default_optim)."""


def beside_torch(path: str, draft: Draft) -> None:
    """Attention that nobody chose is eager beside a PyTorch on which transformers does not take SDPA, and AdamW copies
    what it steps on beside one on which it is not fused; said of a whole model where nothing pins it."""
    mine, whose = pinned(path, "torch")
    chosen = "attention" in draft.given or "unsloth" in draft.facts or draft.values.get("attention", "sdpa") != "sdpa"
    told, newest = draft.origins.get("attention"), draft.origins.get("trainer_version")  # that the file may be of
    since = SDPA_SINCE.get(family_of(draft.said), "") if newest and "until transformers" in newest.text else ""
    if mine and not chosen and (told is None or told.kind != FILE) and version_key(mine) < SDPA_ON:
        draft.values.pop("attention", None)
        why = f"{whose} pins torch {mine}, and transformers takes SDPA from 2.1.1 on"
        draft.put("attention", "eager", Origin(DEFAULT, why))
    elif since and not chosen and told is None and draft.version >= version_key(since):
        why = f"transformers {since} and newer{UNTIL}then eager, which keeps all scores"
        draft.put("attention", "sdpa", Origin(DEFAULT, why))
    if (mine and version_key(mine) >= FUSED_ON) or not _fused_by_default(draft):
        return
    why = f"torch 2.8 and newer{UNTIL}2.7 foreach, which copies what it steps on"
    if mine:
        why = f"{whose} pins torch {mine}, and transformers takes the fused AdamW from 2.8 on"
    if mine or not draft.values.get("lora"):
        draft.values.pop("optimizer_impl", None)
        draft.put("optimizer_impl", "foreach" if mine else "fused", Origin(DEFAULT, why))


def _fused_by_default(draft: Draft) -> bool:
    """Whether nobody chose the optimizer, and the trainer takes the fused AdamW."""
    given = draft.said
    told = [draft.origins[key].kind for key in ("optimizer", "optimizer_impl") if key in draft.origins]
    chosen = FILE in told or {"optimizer", "optimizer_impl"} & draft.given or given.get("optimizer", "adamw") != "adamw"
    if chosen or any(each.decides == "optimizer" for each in draft.unread):
        return False
    own = find_trainer(
        str(given.get("trainer", "transformers")), str(given.get("trainer_version") or "")
    ).optimizer_impl
    if own != "fused":  # the reader's default is the newest one's
        draft.forget("optimizer_impl")
    return own == "fused" and given.get("optimizer_impl", own) == "fused"


FREES_INPUTS = (0, 43, 2)
"""The bitsandbytes whose 4-bit product frees its inputs (autograd/_functions.py: ``ctx.tensors``)."""


def beside_bitsandbytes(path: str, package: str, draft: Draft) -> None:
    """A trainer beside another bitsandbytes than it came out with: the era next to its own, which differs in what 4-bit
    products keep alone; a trainer of a later one is unclear beside an old bitsandbytes."""
    mine, whose = pinned(path, "bitsandbytes")
    four_bit = str(draft.values.get("quantization"))[:3] in ("nf4", "fp4") and "unsloth" not in draft.facts
    if not mine or not four_bit or "trainer_version" in draft.given:
        return
    eras, version = TRAINERS[package], str(draft.options.get("trainer_version") or "")
    last = max(place for place, era in enumerate(eras) if "bnb-4bit" in era.models.keeps_inputs)
    before, after, later = (eras[place].since for place in (last, last + 1, last + 2))
    key, frees = version_key(version) or (99,), version_key(mine) >= FREES_INPUTS
    why = f"{whose} pins bitsandbytes {mine}"
    if frees and version_key(before) <= key < version_key(after):
        of_another(draft, after, why)
    elif not frees and version_key(after) <= key < version_key(later):
        of_another(draft, before, why)
    elif not frees and key >= version_key(later):
        draft.warn("bitsandbytes", whose, f"the inputs of {mine}'s 4-bit products are not counted", "quantisation")


def of_another(draft: Draft, version: str, why: str) -> None:
    """The version of another package's trainer, in the place of the one that ``settle`` told."""
    draft.options = {**draft.options, "trainer_version": version}
    draft.forget("trainer_version")
    draft.put("trainer_version", version, Origin(ASSUMED, why))


def labelled(row: Framework, version: str, draft: Draft) -> Framework:
    """The framework's row under this version, which the report names."""
    found = row._replace(version=version or row.version)
    draft.read[-1:] = [each.replace(row.label, found.label) for each in draft.read[-1:]]
    return found


def put_version(row: Framework, version: str, why: str, path: str, draft: Draft) -> str:
    """The version, with what it is by; a package of git is of a day that its commit does not tell."""
    whose = "" if "pins" in why or not path else pinned(path, f"{row.name}@")[1]
    if whose:
        version = version or row.version
        why = f"{whose} has {row.name} of git{UNTIL}--trainer-version tells its day, the newest with these arguments"
    if version:
        draft.of_version(version, why)
    return version

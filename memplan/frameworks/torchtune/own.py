"""torchtune's own configs, which ``tune run`` takes by name: what memory feels of each, in a table beside this file."""

import re
from typing import Any

from memplan.tables.texts import parts_of, settings_in

OWN_NAME = re.compile(r"[a-z0-9_]+/[\w.]+|[0-9]\w+")
"""llama3_1/8B_lora: a config of torchtune's own package."""
_ALL = settings_in(
    """optimizer._component_=torch.optim.AdamW optimizer.fused=true
    loss._component_=torchtune.modules.loss.CEWithChunkedOutputLoss"""
)
_LORA = settings_in("model.lora_attn_modules=q_proj,v_proj,output_proj model.apply_lora_to_mlp=true")
"""What most have, where a row says no other."""


def own_config(name: str) -> dict[str, Any] | None:
    """The settings of one by dotted names; None for a name that is not in the table."""
    for heading, text in parts_of(__file__).items():
        for row in text.split():
            known, _, builder = row.partition("=")
            if known == name:
                builder = builder or _builder(name)
                common = _ALL | (_LORA if "lora_" in builder else {})
                return {"model._component_": f"torchtune.models.{builder}", **common, **settings_in(heading)}
    return None


def _builder(name: str) -> str:
    """llama3_2/1B_qlora_single_device: llama3_2.qlora_llama3_2_1b."""
    family, _, rest = name.partition("/")
    size = rest.partition("_")[0].lower().replace(".", "_")
    kind = "qlora_" if "qlora" in rest else "lora_" if re.search("[ld]ora", rest) else ""
    return f"{family}.{kind}{family}_{size}"

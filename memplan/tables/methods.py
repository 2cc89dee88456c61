"""One row per training method: how many sequences an example is, and which models stand beside the policy."""

from typing import NamedTuple


class Method(NamedTuple):
    """What a method asks of memory, whoever trains it."""

    name: str
    title: str
    pairs: bool = False
    """An example is a chosen and a rejected sequence, so two rows enter the model."""
    reference: bool = False
    """Log-probabilities of a frozen reference policy are needed."""
    score_head: bool = False
    """A scalar head in place of the vocabulary's: no logits at all."""
    sft_term: bool = False
    """The loss contains a language-modelling term on the chosen half by definition."""
    kl_rows: bool = False
    """Trainers add a no-grad forward of mismatched completions, as many rows as the batch (KTO's KL estimate)."""
    online: bool = False
    """The batch comes out of a rollout, in which the policy generates it."""
    optional_reference: bool = False
    """There is no reference where the coefficient of the KL term is 0."""
    critic: bool = False
    """A value model is trained beside the policy."""
    teacher: bool = False
    """A frozen teacher's logits are what is learnt: it stands among ``extra_models``."""
    generates: bool = False
    """Nothing is trained: a generation engine alone."""
    source: str = ""


_ROWS = (
    Method("sft", "supervised fine-tuning"),
    Method("reward", "reward model (Bradley-Terry)", pairs=True, score_head=True, source="arXiv:2203.02155"),
    Method("dpo", "direct preference optimisation", pairs=True, reference=True, source="arXiv:2305.18290"),
    Method("ipo", "identity preference optimisation", pairs=True, reference=True, source="arXiv:2310.12036"),
    Method("kto", "Kahneman-Tversky optimisation", reference=True, kl_rows=True, source="arXiv:2402.01306"),
    Method("orpo", "odds-ratio preference optimisation", pairs=True, sft_term=True, source="arXiv:2403.07691"),
    Method("cpo", "contrastive preference optimisation", pairs=True, sft_term=True, source="arXiv:2401.08417"),
    Method("simpo", "simple preference optimisation", pairs=True, source="arXiv:2405.14734"),
    Method("ppo", "proximal policy optimisation", reference=True, online=True, optional_reference=True, critic=True,
        source="arXiv:1707.06347, arXiv:2203.02155"),
    Method("grpo", "group relative policy optimisation", reference=True, online=True, optional_reference=True,
        source="arXiv:2402.03300"),
    Method("rloo", "REINFORCE leave-one-out", reference=True, online=True, optional_reference=True,
        source="arXiv:2402.14740"),
    Method("online-dpo", "online DPO", pairs=True, reference=True, online=True, source="arXiv:2402.04792"),
    Method("distill", "distillation", teacher=True, source="arXiv:2306.13649"),
    Method("generate", "a generation engine alone, nothing trained", generates=True),
)  # fmt: skip
METHODS = {row.name: row for row in _ROWS}

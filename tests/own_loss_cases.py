"""Losses as users write them, for the tests that walk them and those that run them."""

HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
"""
INIT = """\
class Own(Trainer):
    def __init__(self, *args, teacher=None, **kw):
        super().__init__(*args, **kw)
        self.teacher = teacher
        self.alpha, self.temperature, self.gamma = 0.5, 2.0, 2.0
        self.kl = nn.KLDivLoss(reduction="batchmean")

"""
TAIL = """
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype=torch.bfloat16)
teacher = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B", torch_dtype=torch.bfloat16)
arguments = TrainingArguments("out", per_device_train_batch_size=2, gradient_checkpointing=True)
Own(model=model, teacher=teacher, args=arguments).train()
"""
FORWARD = "        outputs = model(**inputs)\n"
POPPED = '        labels = inputs.pop("labels")\n' + FORWARD
ASKED = FORWARD + "        with torch.no_grad():\n            given = self.teacher(**inputs).logits\n"
LOGPS = """\
    def logps(self, model, ids, mask):
        scores = F.log_softmax(model(input_ids=ids, attention_mask=mask).logits[:, :-1], dim=-1)
        return torch.gather(scores, 2, ids[:, 1:].unsqueeze(-1)).squeeze(-1).sum(-1)

"""
PAIRS = """\
        first = self.logps(model, inputs["input_ids_a"], inputs["mask_a"])
        second = self.logps(model, inputs["input_ids_b"], inputs["mask_b"])
        with torch.no_grad():
            of_first = self.logps(self.teacher, inputs["input_ids_a"], inputs["mask_a"])
            of_second = self.logps(self.teacher, inputs["input_ids_b"], inputs["mask_b"])
        loss = -F.logsigmoid(0.1 * ((first - second) - (of_first - of_second))).mean()
"""
JOINED = """\
        ids = torch.cat([inputs["input_ids_a"], inputs["input_ids_b"]], dim=0)
        mask = torch.cat([inputs["mask_a"], inputs["mask_b"]], dim=0)
        logits = model(input_ids=ids, attention_mask=mask).logits.float()
        score = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1).mean(-1)
        half = inputs["input_ids_a"].shape[0]
        loss = -F.logsigmoid(score[:half] - score[half:]).mean()
"""
LOSSES = {
    "weighted": POPPED
    + """\
        shifted = outputs.logits[..., :-1, :].contiguous()
        labels = labels[..., 1:].contiguous().view(-1)
        token = nn.CrossEntropyLoss(reduction="none")(shifted.view(-1, shifted.size(-1)), labels)
        loss = (token * torch.where(labels > 100, 2.0, 1.0)).mean()
""",
    "beside the model's own": FORWARD
    + """\
        shifted = outputs.logits[:, :-1, :].contiguous().float()
        labels = inputs["labels"][:, 1:].reshape(-1)
        loss = F.cross_entropy(shifted.view(-1, shifted.shape[-1]), labels, reduction="none").mean()
""",
    "focal": POPPED
    + """\
        scores = F.log_softmax(outputs.get("logits")[:, :-1].float(), dim=-1)
        target = labels[:, 1:].unsqueeze(-1)
        picked, sure = scores.gather(-1, target).squeeze(-1), scores.exp().gather(-1, target).squeeze(-1)
        loss = (-((1 - sure) ** self.gamma) * picked).mean()
""",
    "distilled": ASKED
    + """\
        soft = self.kl(
            F.log_softmax(outputs.logits / self.temperature, dim=-1), F.softmax(given / self.temperature, dim=-1)
        )
        loss = self.alpha * outputs.loss + (1.0 - self.alpha) * soft * self.temperature**2
""",
    "near a frozen copy": ASKED
    + """\
        mine, theirs = torch.log_softmax(outputs.logits.float(), -1), torch.log_softmax(given.float(), -1)
        loss = outputs.loss + 0.1 * (mine.exp() * (mine - theirs)).sum(-1).mean()
""",
    "reverse divergence": ASKED
    + """\
        mine, theirs = F.log_softmax(outputs.logits, dim=-1), F.log_softmax(given, dim=-1)
        loss = F.kl_div(theirs, mine, log_target=True, reduction="batchmean") + outputs.loss
""",
    "Jensen-Shannon": ASKED
    + """\
        mine, theirs = F.softmax(outputs.logits.float(), -1), F.softmax(given.float(), -1)
        both = 0.5 * (mine + theirs)
        sides = [F.kl_div(both.log(), each, reduction="batchmean") for each in (mine, theirs)]
        loss = outputs.loss + 0.5 * sum(sides)
""",
    "mean square": ASKED + "        loss = outputs.loss + F.mse_loss(outputs.logits, given)\n",
    "entropy": FORWARD
    + """\
        shares = torch.softmax(outputs.logits, dim=-1)
        loss = outputs.loss + 0.01 * (shares * torch.log(shares + 1e-9)).sum(dim=-1).mean()
""",
    "smoothed": POPPED
    + """\
        logits, labels = outputs.logits[:, :-1, :].contiguous(), labels[:, 1:].contiguous()
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1), label_smoothing=0.1)
""",
    "unlikelihood": FORWARD
    + """\
        shares = F.softmax(outputs.logits[:, :-1], dim=-1)
        picked = shares.gather(2, inputs["labels"][:, 1:].unsqueeze(2)).squeeze(2)
        loss = outputs.loss - torch.log(torch.clamp(1 - picked, min=1e-6)).mean()
""",
    "one-hot": POPPED
    + """\
        mask = labels[..., 1:] != -100
        logits, labels = outputs.logits[..., :-1, :][mask], labels[..., 1:][mask]
        target = F.one_hot(labels, logits.size(-1)).float() * 0.9 + 0.1 / logits.size(-1)
        loss = -(target * F.log_softmax(logits, dim=-1)).sum(-1).mean()
""",
    "embeddings": """\
        outputs = model(**inputs, output_hidden_states=True)
        states, mask = outputs.hidden_states[-1].float(), inputs["attention_mask"].unsqueeze(-1)
        pooled = F.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
        near = pooled @ pooled.T / 0.07
        loss = outputs.loss + F.cross_entropy(near, torch.arange(near.size(0)))
""",
    "pairs, a forward each": PAIRS,
    "pairs, one forward": JOINED,
}
"""What a ``compute_loss`` does before it returns its loss."""


def source(name: str) -> str:
    """The trainer's class with this loss."""
    begin = "    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):\n"
    return f"{INIT}{LOGPS}{begin}{LOSSES[name]}        return (loss, outputs) if return_outputs else loss\n"

"""The four ways to run a training step on preference pairs, in PyTorch, with equal gradients.

``pair_step`` runs forward and backward of one micro-step under a schedule of ``SCHEDULES``; ``docs/pair_schedules.md``
says what each saves and costs. Needs torch, and nothing else: any model whose forward gives logits will do.

    output = pair_step(model, batch, SimPO(beta=2.0, gamma_beta_ratio=0.5), schedule="split")
    optimizer.step()"""

from memplan.torch.losses import CPO, DPO, ORPO, PairLoss, SimPO
from memplan.torch.schedules import SCHEDULES, PairOutput, fsdp2_no_sync, pair_step
from memplan.torch.scores import Scores, sequence_scores

__all__ = [
    "CPO",
    "DPO",
    "ORPO",
    "SCHEDULES",
    "PairLoss",
    "PairOutput",
    "Scores",
    "SimPO",
    "fsdp2_no_sync",
    "pair_step",
    "sequence_scores",
]

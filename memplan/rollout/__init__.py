"""Trainer and engine over one RL step: which processes hold what of a card at each instant, and of a node's memory.

``holding`` says what of the trainer is on the card while it does not train; ``instants`` puts the processes beside each
other; ``together`` is what a report and a search ask, and what transformers' generate adds."""

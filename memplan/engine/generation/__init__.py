"""The generation engine: what vLLM or SGLang takes of a card, from the same description of the model as training."""

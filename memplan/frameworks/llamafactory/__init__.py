"""LLaMA-Factory's files."""

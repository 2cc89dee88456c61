"""Megatron-LM's arguments, and MindSpeed-LLM's."""

"""LLM Foundry's YAML."""

"""Megatron-Bridge's scripts and recipes."""

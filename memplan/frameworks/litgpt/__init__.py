"""LitGPT's files."""

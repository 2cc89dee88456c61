"""Axolotl's YAML."""

"""prime-rl's TOML."""

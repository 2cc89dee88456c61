"""torchtitan's files."""

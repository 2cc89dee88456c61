"""torchtune's recipes."""

"""Python programs and notebooks, from the syntax tree; nothing of them is run."""

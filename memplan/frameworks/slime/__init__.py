"""slime's scripts and programs."""

"""TRL's arguments and commands."""

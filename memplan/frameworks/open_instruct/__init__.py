"""open-instruct's commands."""

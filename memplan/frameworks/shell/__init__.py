"""What a shell script starts, by its words; nothing of it is run."""

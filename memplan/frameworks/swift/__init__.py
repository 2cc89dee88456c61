"""ms-swift's commands and arguments."""

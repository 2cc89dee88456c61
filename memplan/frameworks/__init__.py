"""The files that people already have, and the files that they can run: one file of this folder per framework."""

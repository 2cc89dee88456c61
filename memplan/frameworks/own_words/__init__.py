"""A remedy in the words of the file that a job came from."""

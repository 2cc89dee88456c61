"""One answer for each file, of however many."""

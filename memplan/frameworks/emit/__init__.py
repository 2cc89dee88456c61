"""Files to run: written, or changed where they stand, and read back."""

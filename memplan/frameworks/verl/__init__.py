"""verl's settings, of every version, and of what is built on it."""

"""Out-of-memory errors, read: what asked for how much, at which moment, what the tensor was, and what to change."""

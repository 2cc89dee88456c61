"""One play of the step: every allocation and free, in the framework's order, on one tape."""

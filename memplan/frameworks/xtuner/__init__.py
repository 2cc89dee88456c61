"""XTuner's configs."""

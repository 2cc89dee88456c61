"""Logs of generation engines and trainers: what they say of memory, term by term, beside what memplan estimates."""

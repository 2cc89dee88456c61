"""Memory snapshots of PyTorch: read without running anything in them, replayed, and held against a played step."""

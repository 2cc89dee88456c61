"""What transformers' Trainer and the scripts on it share."""

"""DeepSpeed's ZeRO on the play."""

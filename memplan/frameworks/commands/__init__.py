"""What starts a training: its launcher, its processes, Hydra's options, a cluster's lines."""

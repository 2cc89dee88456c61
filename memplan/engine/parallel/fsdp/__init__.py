"""The rows of FSDP1 and FSDP2: what their hooks hold at each instant, played over layers that are black boxes."""

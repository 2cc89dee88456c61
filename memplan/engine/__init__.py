"""What occupies memory, and when: from a recipe to a ledger of bytes.

``build`` puts a ledger together: ``stages`` and ``passes`` say which models run over what, in which order, ``traces``
plays a layer and a tail on a tape, ``states`` holds what lasts, ``ranks`` says which ranks differ. Folders::

    tapes      autograd by size, and the operations that models are made of
    parts      what layers are built with: linears, adapters, norms, feed-forwards, experts, rotary embeddings
    mixing     attention and state spaces of every kind
    forms      how a layer is put together, and what stands before and between layers
    scoring    from the last hidden states to a loss
    towers     what sees images
    rows       what a pass, its outputs and its model hold beside the layers
    splitting  DDP, DeepSpeed's ZeRO, FSDP, torch's own tensor and pipeline parallelism
    megatron   Megatron-Core's layers, schedules and buffers
    device     the caching allocator, libraries' workspaces, communicators
"""

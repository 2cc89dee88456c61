"""What occupies memory, and when: from a recipe to a ledger of bytes.

``build`` puts a ledger together: ``micro_step`` and ``passes`` say which models run over what, in which order,
``traces`` plays a layer and a tail on a tape, ``model_states`` holds what lasts, ``ranks`` which differ. Folders::

    tape       autograd by size, and the operations that models are made of; checkpointing, offloading
    layers     decoder and encoder layers: linears, LoRA, norms, rotary, feed-forwards; and in folders of their own
               attention (Qwen3's and Llama's is softmax.py; sdpa chooses the kernel), state_space, moe, vision
    losses     from the last hidden states to a loss: each trainer's head (TRL's, Liger's, verl's …)
    parallel   ddp, fsdp1, fsdp2 (all_gather, reduce_scatter), zero (prefetch, buckets), tensor, sequence, pipeline
    optimizer  states that stay, temporaries of a step (AdamW's and the others')
    rows       what a pass, its outputs and its model hold beside the layers
    megatron   Megatron-Core's layers, schedules and buffers
    allocator  the caching allocator: from allocated to reserved; ``overhead`` and ``nccl`` are what lies outside it"""

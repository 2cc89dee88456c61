"""Megatron-Core's ranks: what one GPU of a tensor, pipeline, context and expert parallel job holds, and when.

Read from megatron-core 0.14 (Megatron-LM 23e00ed0) to 0.16 and TransformerEngine 2.11. Layers are lists of steps
(``steps``), each with what its modules save for backward and what they hold for a moment; ``stages`` says which layers
a pipeline stage has and how many micro-batches wait there; ``build`` makes the ledger of both."""

"""How a layer is put together of its parts, and what stands before and between layers."""

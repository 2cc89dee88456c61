"""What losses of a program's own hold: their code walked over tensors that have a size and no contents."""

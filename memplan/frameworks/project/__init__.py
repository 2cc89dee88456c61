"""What the project around a file tells: who starts it, what it pins, whose code it copied and changed."""

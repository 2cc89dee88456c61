"""How positions exchange something: every kind of attention and of state space as a program on the tape."""

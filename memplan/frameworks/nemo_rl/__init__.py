"""NeMo RL's configs."""

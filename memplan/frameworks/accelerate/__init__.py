"""accelerate's configs and launcher."""

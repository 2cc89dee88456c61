"""What several frameworks say alike, read once for all of them."""

"""What lies on disk, opened with care: documents, the files that they name, and values put back into them."""

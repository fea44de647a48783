"""The index: embeddings, points, stores, builds, recall."""

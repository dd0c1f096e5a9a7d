"""ImageNet: an index of its image files, decoding, random and central crops, and batches made by threads."""

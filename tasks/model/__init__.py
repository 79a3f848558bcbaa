"""Where tensors are: batches, the training loop, checkpoints, scoring, formats."""

"""What became of each epoch, for who watches a training: a CSV file always, Weights & Biases on request."""

"""The metrics of each epoch, to follow a training: a CSV file always, Weights & Biases on request."""

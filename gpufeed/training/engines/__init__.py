"""What runs the training loop: plain, fastai, lightning."""

"""Engines that run the training loop: plain, fastai, lightning."""

"""dormouse: post-train a small byte-level language model on tasks that a program can check."""

__version__ = "0.1.0"

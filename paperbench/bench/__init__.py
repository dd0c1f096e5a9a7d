"""Training speed on this machine: every engine and precision against a plain PyTorch loop."""

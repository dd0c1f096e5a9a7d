"""How fast this machine trains: every engine and precision beside a plain PyTorch loop, in interleaved rounds."""

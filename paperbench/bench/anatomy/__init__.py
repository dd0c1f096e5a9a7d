"""Where a training step's time goes on this machine, against the least that bytes, launches and arithmetic take."""

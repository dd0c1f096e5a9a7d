"""The HTML page of `paperbench report`."""

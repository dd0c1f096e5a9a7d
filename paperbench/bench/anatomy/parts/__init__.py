"""One module a part, each with a function `measure(context)` that writes rows."""

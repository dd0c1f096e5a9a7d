"""The paper's analysis, Sections 2 and 3, measured on its own nets."""

"""From findings to what a person reads: text, figures, pages."""

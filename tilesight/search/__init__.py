"""Search: which candidates are lowered, and which predicted candidates are measured."""

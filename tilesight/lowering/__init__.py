"""Lowering: TileLang's passes on the CPU, for any target."""

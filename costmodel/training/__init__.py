"""Training and evaluation of the learned model, and the fit of the analytical model's constants."""

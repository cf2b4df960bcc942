"""Training frameworks fed by headrace and resumed by their own checkpoints, a module each."""

"""The `headrace` command, above all layers, which it imports when a command needs them."""

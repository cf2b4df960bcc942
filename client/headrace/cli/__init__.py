"""The `headrace` command: stands above all layers and imports each when a command needs it."""

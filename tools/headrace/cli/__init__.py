"""The `headrace` command. Each command imports other packages only when it runs."""

"""What a user may set, as frozen values that are checked when they are made."""

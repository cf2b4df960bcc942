"""The parts of the order that version 1 did not have."""

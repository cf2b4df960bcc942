"""Stages of the batch as users write them; each class says what it needs of requests and states."""

"""Stages of the batch, a folder each; `headrace.server.stream.stage_plugs` finds them."""

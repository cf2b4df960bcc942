"""Objects in a store together with their versions, for foreign layouts that lack a manifest."""

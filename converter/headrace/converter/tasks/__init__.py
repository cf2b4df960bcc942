"""What one task does: cut samples into shards and upload them; and the commit of all tasks."""

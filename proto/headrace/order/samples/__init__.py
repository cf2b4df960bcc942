"""What an order is made from: shard tables and their runs, options, and samples to skip."""

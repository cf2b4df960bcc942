"""What a stream will send: requests checked, the order and the slicing joined, blocks foreseen."""

"""From storage to steps: lanes, and how they deal out the samples of shuffled runs."""

"""Load Hugging Face tokenizers from files, and identify them by digests."""

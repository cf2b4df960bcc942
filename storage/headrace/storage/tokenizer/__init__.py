"""Tokenizers of Hugging Face's library: loaded from files, named by digests."""

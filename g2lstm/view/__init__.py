"""The live page: what the gates of trained runs do on a sentence that a visitor types."""

"""The compiler from schemas/ to kavka.protocol.messages: see schemas/README.md for its input."""

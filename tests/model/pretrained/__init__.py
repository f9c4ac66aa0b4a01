"""Sub-models of models of transformers, with configs of their own."""

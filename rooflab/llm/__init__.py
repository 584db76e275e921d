"""Language models: from a published configuration to the time of a token at the roofs."""

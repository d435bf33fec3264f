"""The nouns: what a job is made of, and what agents, outside and core say to one another."""

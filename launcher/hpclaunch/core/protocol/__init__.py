"""The data that all packages of the core share: facts, messages, events and effects of a job."""

"""The data that all rooms of the core share: a job's facts, messages, events and effects."""

"""The job's rounds, as the head sees them."""

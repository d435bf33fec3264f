"""What becomes of a job over time: what agents note now and then, so that a page can show it."""

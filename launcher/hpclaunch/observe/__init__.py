"""Views of a job, made of facts. No decision is made here, and no text is parsed."""

"""What several modules of the system build on."""

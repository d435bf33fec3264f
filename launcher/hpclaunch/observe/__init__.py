"""What people see of a job, made of facts. Nothing is decided here, nor read again."""

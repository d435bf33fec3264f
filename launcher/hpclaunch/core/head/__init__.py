"""The head's side: it runs the job's rounds."""

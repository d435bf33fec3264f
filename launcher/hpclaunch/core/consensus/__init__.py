"""The agreement of the agents on who leads, and until when. Knows nothing of training."""

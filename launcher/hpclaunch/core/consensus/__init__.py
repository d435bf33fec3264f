"""The agreement of the agents on who leads, and until when. It knows nothing of training."""

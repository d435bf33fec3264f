"""The agreement of the agents on who leads, and until when. It does not depend on training."""

"""Who leads, and until when. Knows nothing of training."""

"""How the agents agree on who leads, and until when. Knows nothing of training."""

"""What can be seen of a running job, as frozen values. The head makes them; views show them."""

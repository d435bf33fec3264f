"""The network: the agents' channels, their secret and messages, addresses, and reachability."""

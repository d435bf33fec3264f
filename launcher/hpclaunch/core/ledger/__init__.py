"""The ledger: on what every second of every GPU went, and why rounds and jobs ended."""

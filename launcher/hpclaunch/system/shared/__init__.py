"""What several modules of the system use: helper processes, packing, disks, limits, prctl."""

"""Tools of several modules of the system: helper processes, packing, disks, limits, prctl."""

"""One thing of the outside world per file. These modules do not import each other."""

"""The compiler, which torch imports at the construction of the first optimizer."""

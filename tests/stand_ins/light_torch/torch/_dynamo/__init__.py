"""The compiler, which torch imports with the first optimizer."""

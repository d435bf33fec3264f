"""Stand-in for scikit-learn: its digits, from its own file, without the import of SciPy.

Training scripts of tests need nothing else of it, and the import takes a second in each worker and
template.
"""

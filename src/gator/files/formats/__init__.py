"""Formats that networks are exported to: one file each, behind one abstract class (by_name.py)."""

"""Stands in for PyDrive: tasks that use it need Google. See requirements.txt."""

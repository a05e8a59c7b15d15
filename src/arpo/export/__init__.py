"""What a run holds, for other programs: `arpo export`. docs/export.md says what is written."""

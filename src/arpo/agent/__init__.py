"""What an agent says and does: typed actions, and the dialects that models write them in."""

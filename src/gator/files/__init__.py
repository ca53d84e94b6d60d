"""What a person takes away: files."""

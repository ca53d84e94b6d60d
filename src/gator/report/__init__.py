"""The report of a run: what it shows (run_content.py), read from the run folder, and how that is drawn, as one HTML file."""

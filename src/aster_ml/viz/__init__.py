"""Records what a run did, and shows it as data and as one HTML file."""

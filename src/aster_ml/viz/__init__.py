"""The visualiser: what a run did, recorded, as data and as one HTML file."""

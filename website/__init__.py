"""The documentation as a site, and the pictures in it: `make docs`."""

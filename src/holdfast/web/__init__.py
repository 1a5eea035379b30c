"""Who looks: pages for people."""

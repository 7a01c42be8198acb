"""memplan in a browser: static files, what answers in the page's worker, and the server for one machine."""

"""Models as one HTML file, which runs them in the browser."""

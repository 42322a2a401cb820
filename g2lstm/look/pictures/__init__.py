"""Pictures of gates, as PNG and SVG; readable in grey and by colour-blind people."""
